"""Recomputation, offloading and CPU updates in one search.

Doors: joint, compiling.
"""
