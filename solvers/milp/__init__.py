"""Mixed-integer linear programs and the backends that solve them.

Doors: highs, model, result, safe_bounds, scaling, solve.
"""
