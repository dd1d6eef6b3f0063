"""Whether tensors have equal bits."""

from __future__ import annotations

import torch
from torch import Tensor


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have the same shape, dtype and bits. They may be on different devices."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    other = other.to(one.device)
    # Compared as bytes: for torch.equal -0.0 is 0.0, and nan is not even itself.
    first, second = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)
