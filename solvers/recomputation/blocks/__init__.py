"""A block of a chain, and the options to run it.

Doors: greedy, kinds, option, placed.
"""
