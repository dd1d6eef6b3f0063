"""A graph as a chain of blocks, as chain solvers see it.

Doors: costs, problem, runs.
"""
