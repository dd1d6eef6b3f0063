"""A schedule: its steps, the simulator that validates it, its figures and bounds. No torch here."""

if __name__ != "memplan.planner":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.planner, not planner")
