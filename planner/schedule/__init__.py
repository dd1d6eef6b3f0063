"""A schedule, its file, and the sequence of runs that it comes from.

Doors: schedule, file, sequence.
"""
