"""Transformations of a graph: another order, updates added.

Public modules: order, sharding, updates.
"""
