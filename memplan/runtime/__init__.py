"""From a PyTorch model to a graph, and from a schedule to a run. The only folder that imports torch."""

from .torch_range import check_torch

check_torch()
