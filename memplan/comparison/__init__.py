"""Solvers compared on instances and budgets: `plan bench`."""
