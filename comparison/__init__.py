"""Solvers compared on instances and budgets: `plan bench`."""

if __name__ != "memplan.comparison":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.comparison, not comparison")
