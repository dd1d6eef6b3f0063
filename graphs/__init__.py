"""The problem: a profiled graph of operations and tensors, its files, its structure. No torch here."""

if __name__ != "memplan.graphs":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.graphs, not graphs")
