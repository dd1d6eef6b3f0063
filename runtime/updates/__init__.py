"""Optimizers whose steps can be planned; averages of gradients over processes.

Doors: averages, updates, optimizers, rules, state.
"""
