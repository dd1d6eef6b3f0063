"""Iterations of a schedule, which replace forward and backward.

Public modules: arena, blocked_ownership, captured_iteration, changes, cycle, over_plan, overlaps, owners,
ownership, queues, recovery, spread_ownership, stopwatch.
"""
