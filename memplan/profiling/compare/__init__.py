"""Planned iterations compared with eager PyTorch's: bits, memory, time.

Public modules: accuracy, batch, compiled, cost, eager, eager_operations, peaks, side_by_side, verdict.
"""
