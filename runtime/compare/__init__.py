"""A planned iteration beside plain PyTorch's.

Doors: eager, peaks, side_by_side, verdict.
"""
