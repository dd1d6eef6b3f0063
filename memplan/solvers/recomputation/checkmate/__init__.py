"""Checkmate and Rk-Checkmate: integer programs over stages. Begin with checkmate.py.

Public modules: model, part, rk_model, tensors.
"""
