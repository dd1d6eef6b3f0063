"""Schedules below the minimum memory of a single backward pass: backward in two passes.

Public modules: second_pass.
"""
