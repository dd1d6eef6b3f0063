"""Offloading by settings of other projects: optimizer states, pages of them, first layers.

Begin with optimizer_offload.py.
"""
