"""A planned iteration beside plain PyTorch's.

Doors: accuracy, compiled, eager, grounds, peaks, side_by_side, verdict.
"""
