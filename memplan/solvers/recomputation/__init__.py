"""Solvers that recompute activations."""
