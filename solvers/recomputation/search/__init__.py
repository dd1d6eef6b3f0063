"""The search over sequences in any order.

Doors: search, instance, rounds, compiling.
"""
