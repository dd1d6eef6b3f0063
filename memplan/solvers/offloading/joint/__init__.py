"""Recomputation, offloading and CPU updates in one search.

Public modules: compiling, first, joint.
"""
