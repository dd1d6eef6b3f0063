"""The structure of a graph: chains of blocks, cuts, dominators, valid orders.

Doors: chain, dominators, forward_cuts.
"""
