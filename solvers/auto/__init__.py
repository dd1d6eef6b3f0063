"""Portfolios: several solvers in parallel.

Doors: workers.
"""
