"""Clusters of clusters: subgraphs, passes, options and budgets. Begin with tree.py.

Public modules: grid, option, passes, piece, tree.
"""
