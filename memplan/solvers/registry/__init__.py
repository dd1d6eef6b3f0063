"""The catalogue of solvers, and how a solver is run and its answer checked.

Public modules: catalogue, kept, run, warm_start.
"""
