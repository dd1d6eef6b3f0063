"""What no schedule within the budget is faster than.

Doors: lower_bounds.
"""
