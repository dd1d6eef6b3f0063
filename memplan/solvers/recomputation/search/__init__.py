"""The search over sequences in any order.

Public modules: compiling, rounds, search.
"""
