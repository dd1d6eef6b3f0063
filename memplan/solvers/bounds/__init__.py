"""Lower bounds: times that no schedule within the budget is faster than.

Public modules: certificate, lower_bounds.
"""
