"""The residency program: bounds without transfers.

Public modules: facts, max_flow, order, residency, schedule, search.
"""
