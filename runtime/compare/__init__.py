"""A planned iteration beside plain PyTorch's.

Doors: peaks, side_by_side, verdict.
"""
