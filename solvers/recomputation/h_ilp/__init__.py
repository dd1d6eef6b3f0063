"""H-ILP's program for one level of a hierarchy.

Doors: graph, level, top.
"""
