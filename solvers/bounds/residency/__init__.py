"""The residency program: bounds without transfers.

Doors: residency, facts, order, schedule, search.
"""
