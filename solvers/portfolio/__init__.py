"""Several solvers side by side.

Doors: workers.
"""
