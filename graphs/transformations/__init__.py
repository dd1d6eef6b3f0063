"""Transformations of a graph: another order, updates added.

Doors: order, updates.
"""
