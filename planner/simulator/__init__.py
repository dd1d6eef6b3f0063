"""The simulator of schedules: memory by order, time by queues.

Public modules: clock, copies, curves, part, pinned, simulate, timeline, walk.
"""
