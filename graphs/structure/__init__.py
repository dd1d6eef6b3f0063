"""What a graph looks like: chains of blocks, cuts, dominators, orders that hold.

Doors: chain, dominators, forward_cuts.
"""
