"""Pointwise operations and those around them made one, compiled by PyTorch's Inductor.

Doors: choice, fused, kernel, members.
"""
