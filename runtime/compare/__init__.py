"""Planned iterations compared with eager PyTorch's: bits, memory, time.

Doors: accuracy, compiled, cost, eager, grounds, peaks, side_by_side, verdict.
"""
