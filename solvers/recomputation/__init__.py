"""Solvers that make tensors again."""
