"""Files of other tools: graphs from them, and graphs for them. Begin with formats.py."""

if __name__ != "memplan.exchange":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.exchange, not exchange")
