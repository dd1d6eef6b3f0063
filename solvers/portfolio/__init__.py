"""Several solvers side by side."""
