"""Rules of memplan's own operators, which stand for changes in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...devices.calls.in_layout import changed_by
from ...devices.calls.scatters import copy, in_form, select_scatter, slice_scatter
from ...program.program import Call
from .places import selected_into
from .rows import Along, Shape
from .rules import Pattern, Rule, Site, aligned, pointwise


def changed(site: Site, at: int, along: Along) -> Pattern | None:
    """Split an in-place operation that has a separate result, if it works element by element."""
    target = changed_by(site.call.target)
    found = pointwise(site, at, along) if torch.Tag.pointwise in target.tags else None
    return found and found._replace(piece=site.each(changed_copy, target))


def changed_copy(target: Callable[..., Tensor], first: Tensor, *others: Any, **keywords: Any) -> Tensor:
    """Change a copy in place. It has no gaps, which one with the strides of a piece would have."""
    return target(first.clone(), *others, **keywords)


def formed(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `in_form(source, shape, strides, dtype)`."""
    found = pointwise(site, at, along)
    if found is None or not isinstance(out := found.outputs[0], Along):
        return None
    shape, strides = site.shape(site.made[0]), site.argument(2)

    def piece(rows: int) -> Call:
        block = out.block(shape, rows)
        assert block is not None
        return site.with_arguments({1: block, 2: _packed(block, strides)})

    return found._replace(piece=piece)


def _packed(shape: Shape, strides: Sequence[int]) -> list[int]:
    """Return strides without gaps in the same order."""
    packed, reached = [1] * len(shape), 1
    # Innermost first; of equal strides (dimensions of size 1) the last one.
    for dimension in sorted(range(len(shape)), key=lambda d: (strides[d], -d)):
        packed[dimension], reached = reached, reached * shape[dimension]
    return packed


def _sliced(site: Site) -> Sequence[int] | None:
    first = site.read(0)
    return None if first is None or site.call.keywords else [site.dimension(2, first)]


OWN: Mapping[Callable[..., Any], Rule] = {
    copy: pointwise,
    in_form: formed,
    slice_scatter: aligned(_sliced),
    select_scatter: selected_into,
}
"""By function."""
