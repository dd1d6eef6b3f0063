"""Iterations of a schedule in the place of forward and backward.

Doors: cycle, execute, inputs, interrupts, over_plan, recovery, stopwatch.
"""
