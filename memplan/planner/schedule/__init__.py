"""A schedule, its file, and the sequence of runs that it comes from.

Public modules: file, schedule, sequence.
"""
