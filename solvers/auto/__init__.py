"""Portfolios: several solvers in parallel.

Public modules: workers.
"""
