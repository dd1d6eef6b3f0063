"""From a graph to another: updates, accumulation, weights read where they lie.

Doors: order, updates.
"""
