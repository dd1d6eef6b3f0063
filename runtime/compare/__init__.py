"""Planned iterations compared with eager PyTorch's: bits, memory, time.

Doors: accuracy, compiled, cost, eager, peaks, side_by_side, signature, verdict.
"""
