"""Optimizers whose steps can be planned; what others take; averages of gradients over processes
(averages.py), and of weights over time (averaged.py).

Public modules: averaged, averages, catalogue, choice, clipping, elementwise, masters, norm_sums,
optimizer_memory, order, parts, planned_optimizer, rules, scaling, state, sums, updates.
"""
