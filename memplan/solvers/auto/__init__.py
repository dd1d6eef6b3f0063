"""Portfolios: several solvers in parallel.

Public modules: members, workers.
"""
