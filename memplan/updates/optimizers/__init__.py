"""Optimizers whose steps can be planned, a file each: its name is the optimizer's on the command line.

To add one, write a file here with a `PlannedOptimizer` named OPTIMIZER. No list of them stands elsewhere.

Public modules: adamw.
"""
