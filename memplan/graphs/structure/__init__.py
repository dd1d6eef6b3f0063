"""The structure of a graph: chains of blocks, cuts, dominators, valid orders.

Public modules: chain, dominators, forward_cuts.
"""
