"""Optimizers whose steps can be planned.

Doors: updates, optimizers, rules, state.
"""
