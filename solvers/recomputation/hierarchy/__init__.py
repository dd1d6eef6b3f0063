"""Clusters of clusters: pieces, passes, options and budgets.

Doors: budgets, grid, option, passes, piece, tree.
"""
