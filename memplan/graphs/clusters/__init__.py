"""A graph as a hierarchy of clusters, and which of them are identical.

Public modules: clusters, dot, interface, parts, tree.
"""
