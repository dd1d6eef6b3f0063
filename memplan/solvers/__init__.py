"""Solvers: one algorithm a file, found by name through the registry."""
