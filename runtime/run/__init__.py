"""Iterations of a schedule, which replace forward and backward.

Doors: cycle, execute, inputs, over_plan, recovery, stopwatch.
"""
