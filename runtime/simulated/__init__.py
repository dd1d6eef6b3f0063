"""A device that is not there, as hostile as CUDA; and what its allocator takes for a schedule.

Doors: replayed.
"""
