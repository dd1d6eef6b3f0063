"""Clusters of clusters: subgraphs, passes, options and budgets. Begin with tree.py.

Doors: grid, option, passes, piece, tree.
"""
