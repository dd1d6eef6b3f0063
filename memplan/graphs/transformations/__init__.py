"""Transformations of a graph: another order, updates, sharded training, collectives on the compute queue.

Public modules: gathering, one_queue, order, shares, sharding, updates.
"""
