"""The search over sequences in any order.

Doors: search, rounds, compiling.
"""
