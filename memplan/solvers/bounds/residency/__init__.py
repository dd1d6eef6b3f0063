"""The residency program: bounds without transfers.

Public modules: cuts, facts, max_flow, order, residency, schedule, search.
"""
