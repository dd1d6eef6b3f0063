"""Transformations of a graph: another order, updates added, collectives on the compute queue.

Public modules: one_queue, order, sharding, updates.
"""
