"""Problems with their origin: models and machines of the papers, instances made by rule."""

if __name__ != "memplan.instances":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.instances, not instances")
