"""The step that a loop calls: it finds a plan for the batch and runs it.

Public modules: accumulating, deferred, evaluation, inference, retry, unplanned_optimizer.
"""
