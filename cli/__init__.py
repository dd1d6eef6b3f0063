"""The command `plan`: one command a file. The only folder that knows click and rich."""

if __name__ != "memplan.cli":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.cli, not cli")
