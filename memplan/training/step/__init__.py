"""The step that a loop calls: it finds a plan for the batch and runs it.

Public modules: evaluation, executor, unplanned.
"""
