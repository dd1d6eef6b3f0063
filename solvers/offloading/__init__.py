"""Solvers that move tensors."""
