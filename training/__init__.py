"""From a module and its batches to a step that trains within a budget: the Python interface.

optimize.py   memplan.optimize: the arguments
plan.py       one shape: trace, measure, solve, compare
kept.py       plans on disk
step.py       what the loop calls, for batches of any shape
"""
