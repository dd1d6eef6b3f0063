"""Lower bounds: times that no schedule within the budget is faster than.

Doors: lower_bounds.
"""
