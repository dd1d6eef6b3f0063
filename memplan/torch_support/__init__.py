"""Names that PyTorch and Python do not promise to keep, and their errors in one line.

Whoever imports anything from here learns first whether this version of PyTorch is supported.
"""

from .torch_range import check_torch

check_torch()
