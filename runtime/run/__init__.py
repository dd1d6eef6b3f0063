"""Iterations of a schedule in the place of forward and backward.

Doors: cycle, execute, interrupts, over_plan.
"""
