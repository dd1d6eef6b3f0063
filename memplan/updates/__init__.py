"""Optimizers whose steps can be planned; what others take; averages of gradients over processes
(averages.py), and of weights over time (averaged.py).
"""
