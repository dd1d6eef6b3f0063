"""Clipping by norm: the very operations of `torch.nn.utils.clip_grad_norm_`, a gradient at a time.

    dw2 ─▶ norm ─┐
    dw1 ─▶ norm ─┴▶ clip ─▶ the norm of all, the coefficient ─▶ updates, which multiply their gradients

A norm comes from the kernel with which PyTorch takes those of a list, given a list of one: on CUDA that of a
single tensor is another, and rounds otherwise.

If gradients are spread over ranks, each rank takes the norms of its shares. Their squares are added up over
the ranks, all in one collective, as DTensors do one by one. Of modules that communicate themselves that is an
operation of the plan (norm_sums.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..program.program import Setting
from ..torch_support.torch_operators import norm_of
from ..torch_support.torch_tensors import grouped_by_dtype

MAX_NORM = Setting(1, 1.0)
"""The second of an iteration's settings; the first is which update it is."""


def norm(gradient: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the norm of a gradient. dtype: to which it is cast first, None for its own."""
    return norm_of(gradient if dtype is None else gradient.to(dtype))


def clip(max_norm: float, *norms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norm of all gradients, and the coefficient by which each is to be multiplied."""
    return _clip(max_norm, torch.stack(norms))


def clip_over_ranks(
    add_up: Callable[[Tensor], None], max_norm: float, *norms: Tensor
) -> tuple[Tensor, Tensor]:
    """Clip as `clip` does if each rank has the norms of its shares of the gradients.

    add_up: adds a tensor up over the ranks, in place.
    """
    each = torch.stack(norms)
    sum_squares(add_up, each)
    return _clip(max_norm, each)


def sum_squares(add_up: Callable[[Tensor], None], norms: Tensor) -> None:
    """Replace norms of shares, in place, by those of the whole gradients. add_up: as for clip_over_ranks."""
    norms.square_()
    add_up(norms)
    norms.sqrt_()


def clip_stacked(max_norm: float, *norms: Tensor) -> tuple[Tensor, Tensor]:
    """Clip as `clip` does; norms: in stacks."""
    return _clip(max_norm, torch.cat(norms))


def _clip(max_norm: float, norms: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.linalg.vector_norm(norms, 2.0)
    return total, coefficient(max_norm, total)


def coefficient(max_norm: float, total: Tensor) -> Tensor:
    """Return the coefficient by which gradients of this norm are multiplied."""
    # Clamped, as PyTorch does: a branch on the norm would make the host wait for the device.
    return torch.clamp(max_norm / (total + 1e-6), max=1.0)


def in_torchs_order(dtypes: Sequence[torch.dtype]) -> list[int]:
    """Return the gradients' positions in the order in which PyTorch adds their norms: those of a dtype
    together.

    In another order the sum would round differently.
    """
    return grouped_by_dtype([torch.empty(0, dtype=dtype, device="cpu") for dtype in dtypes])
