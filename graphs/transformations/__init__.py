"""Transformations of a graph: another order, updates added.

Public modules: order, updates.
"""
