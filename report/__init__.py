"""A schedule to look at: one page that needs nothing else."""

if __name__ != "memplan.report":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.report, not report")
