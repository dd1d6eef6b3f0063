"""PyTorch's exported programs, read as data: no weight of theirs is loaded and no code of theirs runs.

Public modules: exported.
"""
