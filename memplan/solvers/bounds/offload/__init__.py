"""Bounds with transfers.

Public modules: fractions, offload_bound.
"""
