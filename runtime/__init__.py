"""From a PyTorch model to a graph, and from a schedule to a run. The only folder that imports torch."""

if __name__ != "memplan.runtime":  # found from the repository's root: a second copy of each class
    raise ImportError("import memplan.runtime, not runtime")

from .torch_range import check_torch

check_torch()
