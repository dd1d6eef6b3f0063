"""Transformations of a graph: another order, updates, sharded training, in mixed precision too,
collectives on the compute queue.

Public modules: gathering, mixed_precision, one_queue, order, shares, sharding, updates.
"""
