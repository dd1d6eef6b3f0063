"""Schedules below the once-floor: backward in two passes.

Doors: second_pass.
"""
