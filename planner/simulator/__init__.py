"""The simulator of schedules: memory by order, time by queues.

Doors: clock, copies, curves, part, pinned, simulate, timeline, walk.
"""
