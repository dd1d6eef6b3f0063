"""Checkmate and Rk-Checkmate: integer programs over stages. Begin with checkmate.py.

Doors: model, part, rk_model, tensors.
"""
