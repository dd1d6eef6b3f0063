"""Names that PyTorch and Python do not promise to keep, and their errors in one line.

An import of anything from here first checks the version of PyTorch.
"""

from .torch_range import check_torch

check_torch()
