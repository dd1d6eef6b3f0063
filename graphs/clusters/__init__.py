"""A graph as a hierarchy of clusters, and which of them are identical.

Doors: clusters, dot, interface, parts, tree.
"""
