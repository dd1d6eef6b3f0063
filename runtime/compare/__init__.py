"""A planned iteration beside plain PyTorch's.

Doors: eager, grounds, peaks, side_by_side, verdict.
"""
