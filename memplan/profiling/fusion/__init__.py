"""Pointwise operations and those around them made one, compiled by PyTorch's Inductor.

Public modules: choice, fused, kernel, members.
"""
