"""Names that PyTorch and Python do not promise to keep, and their errors in one line.

PyTorch's are in the files torch_*.py, by subject, each with what it is for. No other room has any, but that
of GPUs that are not here (devices/absent_gpu). Not promised: names that begin with `_`, modules that do,
operators that do, and what the documentation leaves out (`torch.fx.experimental`, the parts of
`torch.utils.flop_counter`, `torch.utils.weak`). All did what they are for in torch 2.10.0, 2.13.0 and 2.15.0.

An import of anything from here first checks the version of PyTorch.
"""

from .torch_range import check_torch

check_torch()
