"""The simulator of schedules: memory by order, time by queues.

Public modules: clock, copies, curves, footprint, part, pinned, simulate, timeline, walk.
"""
