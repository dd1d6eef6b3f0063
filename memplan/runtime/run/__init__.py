"""Iterations of a schedule, which replace forward and backward.

Public modules: cycle, execute, inputs, over_plan, part, queues, recovery, stopwatch.
"""
