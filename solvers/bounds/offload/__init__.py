"""Bounds with transfers.

Doors: fractions, offload_bound.
"""
