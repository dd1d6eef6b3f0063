"""Several solvers side by side.

Doors: process.
"""
