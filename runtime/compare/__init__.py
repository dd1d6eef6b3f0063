"""A planned iteration beside plain PyTorch's.

Doors: accuracy, compiled, cost, eager, grounds, peaks, side_by_side, verdict, worse.
"""
