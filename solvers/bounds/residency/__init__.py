"""The residency program: bounds without transfers.

Doors: residency, facts, max_flow, order, schedule, search.
"""
