"""Solvers: one algorithm a file, found by name through the registry."""

if __name__ != "memplan.solvers":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.solvers, not solvers")
