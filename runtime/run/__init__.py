"""Iterations of a schedule in the place of forward and backward.

Doors: cycle, execute, inputs, over_plan, recovery, stopwatch.
"""
