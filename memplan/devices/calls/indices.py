"""Indices of a call, put into the range that its other arguments allow: for calls on synthetic inputs.

What a model computes as an index from its floating values (sparsemax counts those above a threshold, minus
one) may be out of range when it follows from synthetic ones: an error, or the end of the process on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...torch_support.torch_operators import UNCHECKED_INDEX, schema_of

aten: Any = torch.ops.aten


def in_range(target: Any, arguments: tuple[Any, ...], known: Sequence[bool]) -> tuple[Any, ...]:
    """Return the arguments with every index in range.

    known: per argument, whether it is the real one, to be left as it is.
    """
    rule = _RULES.get(getattr(target, "overloadpacket", None))
    if rule is None:
        return arguments
    found = list(arguments)
    for place, size in rule(arguments):
        if place < len(found) and not known[place]:
            found[place] = _wrapped(found[place], size)
    return tuple(found)


def picks(target: Any) -> bool:
    """Tell whether an operator, in place or not, has an index among its arguments."""
    name = schema_of(target).name.removesuffix("_")
    return name in {str(packet).replace(".", "::") for packet in _RULES}


def _wrapped(index: Any, size: int | Sequence[int]) -> Any:
    if isinstance(index, list | tuple) and not isinstance(size, int):
        return [_wrapped(one, of) for one, of in zip(index, size, strict=False)]
    if not isinstance(index, Tensor) or not isinstance(size, int) or size == 0:
        return index
    if index.dtype in (torch.bool, torch.uint8) or index.dtype.is_floating_point:
        return index
    return index.remainder(size)  # never negative: it has the sign of the divisor


Places = list[tuple[int, Any]]
"""Per argument that is an index, its place and the size, or sizes, that it runs over."""


def _along(arguments: Sequence[Any]) -> Places:
    """Return the indices' position and range for calls like (tensor, dimension, index, …)."""
    tensor, dimension = arguments[0], arguments[1]
    return [(2, tensor.shape[dimension] if tensor.dim() else 1)]


def _each(arguments: Sequence[Any]) -> Places:
    """Return the indices' position and ranges for calls like (tensor, indices of the first dimensions, …).

    A None among the indices stands for a whole dimension; a mask takes as many dimensions as it has.
    """
    tensor, sizes, dimension = arguments[0], list[int](), 0
    for index in arguments[1]:
        sizes.append(tensor.shape[dimension])
        dimension += index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
    return [(1, sizes)]


def _rows(arguments: Sequence[Any]) -> Places:
    """Return the index's position and range for calls like (table, index of rows, …)."""
    return [(1, arguments[0].shape[0])]


def _counted_rows(arguments: Sequence[Any]) -> Places:
    """Return the index's position and range for calls like (gradient, index of rows, how many rows, …)."""
    return [(1, arguments[2])]


def _classes(place: int) -> Callable[[Sequence[Any]], Places]:
    """Return the rule for calls that take scores and classes, at this position and the next."""
    return lambda arguments: [(place + 1, arguments[place].shape[1 if arguments[place].dim() > 1 else 0])]


def _flat(arguments: Sequence[Any]) -> Places:
    return [(1, arguments[0].numel())]


_RULES: dict[Any, Callable[[Sequence[Any]], Places]] = {
    **dict.fromkeys(
        (
            *(aten.gather, aten.scatter, aten.scatter_add, aten.scatter_reduce, aten.index_select),
            *(aten.index_add, aten.index_copy, aten.index_fill, aten.index_reduce),
        ),
        _along,
    ),
    **dict.fromkeys((aten.index, aten.index_put, *UNCHECKED_INDEX), _each),
    aten.embedding: _rows,
    aten.embedding_dense_backward: _counted_rows,
    aten.nll_loss_forward: _classes(0),
    aten.nll_loss2d_forward: _classes(0),
    aten.nll_loss_backward: _classes(1),
    aten.nll_loss2d_backward: _classes(1),
    aten.take: _flat,
    aten.put: _flat,
}
