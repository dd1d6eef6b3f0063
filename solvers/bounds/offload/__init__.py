"""Bounds with transfers.

Doors: offload_bound.
"""
