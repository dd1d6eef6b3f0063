"""Regions of operations that run in pieces along a dimension, so that only a piece's intermediates exist.

Begin with split.py. `rules` knows along what an operator splits, `growth` finds what runs together, `pieces`
runs it.

Public modules: choice, exact, split.
"""
