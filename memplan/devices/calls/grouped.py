"""Matrix products in groups, as mixtures of experts have them: how many rows a group has depends on the data.

So do the time and the memory that a kernel takes in addition to its result, up to those of one group with all
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...program.names import full_name
from ...torch_support.torch_operators import GROUPED_PRODUCT

ENDS = 2
"""Position of the ends of the groups among the arguments, the same in all of them."""

_OTHERS = {
    "transformers.grouped_mm_fallback.default",
    "transformers.grouped_mm_fallback_backward.default",
}


def is_grouped(target: Any, arguments: Sequence[Any]) -> bool:
    known = target is GROUPED_PRODUCT or full_name(target) in _OTHERS
    return known and len(arguments) > ENDS and arguments[ENDS] is not None


def routings(arguments: Sequence[Any]) -> list[Tensor]:
    """Return ends of groups to measure with: first equal groups, then all rows in one group, in two, in
    four, …
    """
    ends: Tensor = arguments[ENDS]
    groups, rows = len(ends), _rows(*arguments[:2])
    sizes, most = [-(-rows // max(groups, 1))], rows
    while most > 0:
        sizes.append(most)
        most //= 2
    return [_filled(ends, size, rows) for size in sizes]


def with_ends(arguments: Sequence[Any], ends: Tensor) -> tuple[Any, ...]:
    return (*arguments[:ENDS], ends, *arguments[ENDS + 1 :])


def _filled(ends: Tensor, size: int, rows: int) -> Tensor:
    """Return the ends of groups of `size` rows one after the other, as far as there are rows."""
    counted = torch.arange(1, len(ends) + 1, dtype=ends.dtype, device=ends.device)
    return (counted * size).clamp_(max=rows)


def _rows(first: Tensor, second: Tensor) -> int:
    """Return the length of the dimension that the groups divide, summed over all groups."""
    if first.dim() == 3:
        return int(second.shape[1])
    return int(first.shape[0] if second.dim() == 3 else first.shape[1])


def grouped_product(first: Tensor, second: Tensor, ends: Tensor, *_others: Any) -> Tensor:
    """Return a fake of the result. PyTorch's own fake kernel knows bfloat16 alone, unlike its real ones."""
    sides = [first.shape[-2], second.shape[-1]]
    shape = [len(ends), *sides] if first.dim() == second.dim() == 2 else sides
    return first.new_empty(shape)
