"""Replacements of a tensor, or of a part of one, as functionalising writes a change in place.

PyTorch's kernels copy all of the memory that the tensor lies in, however small a part of it the tensor is,
and the result keeps its offset there; their fake kernels know nothing of that. The kernels here copy the
tensor alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

aten: Any = torch.ops.aten


def copy(tensor: Tensor, source: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(tensor).copy_(source)


def slice_scatter(tensor: Tensor, part: Tensor, *where: Any, **named: Any) -> Tensor:
    made = tensor.clone()
    aten.slice.Tensor(made, *where, **named).copy_(part)
    return made


def select_scatter(tensor: Tensor, part: Tensor, *where: Any, **named: Any) -> Tensor:
    made = tensor.clone()
    aten.select.int(made, *where, **named).copy_(part)
    return made


def diagonal_scatter(tensor: Tensor, part: Tensor, *where: Any, **named: Any) -> Tensor:
    made = tensor.clone()
    aten.diagonal.default(made, *where, **named).copy_(part)
    return made


SCATTERS: Mapping[Any, Callable[..., Tensor]] = {
    aten.copy.default: copy,
    aten.slice_scatter.default: slice_scatter,
    aten.select_scatter.default: select_scatter,
    aten.diagonal_scatter.default: diagonal_scatter,
}
"""Per kernel of PyTorch the one of this module. The result has the form of the tensor's clone."""


PLACES = {"slice": aten.slice.Tensor, "select": aten.select.int}
"""Views of a piece of a tensor, by name."""

SCATTERED = {slice_scatter: "slice", select_scatter: "select"}
"""Per kernel that replaces a piece, the name of the piece's view."""

Form = tuple[Sequence[int], Sequence[int], torch.dtype, torch.device, float | None]
"""Shape and strides of a new tensor, its dtype and device, and the number that fills it, if any."""


def in_form(
    source: Tensor, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype | None = None
) -> Tensor:
    """Copy a tensor into a new one of this form, as `copy_` does: its numbers are cast and broadcast."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=source.device).copy_(source)


def filled(
    start: Tensor | Form, pieces: Sequence[Tensor], places: Sequence[Sequence[tuple[Any, ...]]]
) -> Tensor:
    """Return a copy of `start` with pieces written into it, one after the other.

    start: a tensor, or the form of a new one.
    places: per piece the views that lead to where it goes, each as its name and its arguments.
    """
    if isinstance(start, Tensor):
        made = start.clone()
    else:
        shape, strides, dtype, device, number = start
        made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        made = made if number is None else made.fill_(number)
    for piece, views in zip(pieces, places, strict=True):
        part = made
        for name, *arguments in views:
            part = PLACES[name](part, *arguments)
        part.copy_(piece)
    return made


def replace_scatters(graph: fx.Graph) -> None:
    for node in graph.nodes:
        node.target = SCATTERS.get(node.target, node.target) if node.op == "call_function" else node.target
