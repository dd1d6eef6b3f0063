"""Checkmate and Rk-Checkmate: integer programs over stages.

Doors: model, rk_model, tensors.
"""
