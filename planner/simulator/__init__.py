"""The judge of schedules: memory by order, time by queues.

Doors: clock, copies, part, pinned, simulate, timeline, walk.
"""
