"""The file's order: where an operation may run again, greedy eviction, a scan of runs.

Doors: eviction, scan, slots.
"""
