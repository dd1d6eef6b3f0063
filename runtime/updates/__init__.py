"""Optimizers whose steps can be planned; what others take; averages of gradients over processes.

Doors: averages, updates, optimizers, rules, state, counted, masters.
"""
