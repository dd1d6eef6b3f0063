"""Rules of operators that read or write where numbers say: lookups, gathers, scatters, indices."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .rows import Along
from .rules import WHOLE, Part, Pattern, Rule, Site, aligned, broadcast, named, nothing, one_of
from .views import drops, inserts


def looked_up_backward(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `embedding_dense_backward(gradient, indices, …)`, whose terms have the size of all weights."""
    found = None if site.named("scale_grad_by_freq") else _LOOKED_UP(site, at, along)
    return found and found._replace(accumulate=add_rows)


def add_rows(
    total: Tensor, gradient: Tensor, indices: Tensor, _count: int, padding: int, *_others: Any
) -> Tensor:
    """Add the gradients of the rows that were looked up. padding: index of a row that gets none."""
    rows, gradients = indices.flatten(), gradient.flatten(0, indices.dim() - 1)
    if padding >= 0:
        gradients = gradients.masked_fill((rows == padding)[:, None], 0)
    return total.index_add_(0, rows, gradients)


_LOOKED_UP = aligned(nothing, (0, 1), sums=(0,))


_OTHER_DIMENSIONS = aligned(named())


class _Indexed(NamedTuple):
    """Where tensors of indices stand in `input[:, …, one, other, …]`.

    start: the dimension of the input that the first of them is for, and of the result where theirs begin.
    many: how many they are.
    shape: that they are broadcast to.
    """

    start: int
    many: int
    shape: tuple[int, ...]

    def in_result(self, along: Along) -> Along | None:
        """Return where rows of the input, along what is not indexed, are in the result."""
        if along.start >= self.start + self.many:
            return along.shifted(len(self.shape) - self.many)
        return along if along.stop <= self.start else None

    def in_input(self, along: Along) -> Along | None:
        if along.start >= self.start + len(self.shape):
            return along.shifted(self.many - len(self.shape))
        return along if along.stop <= self.start else None


def _indexed(site: Site) -> _Indexed | None:
    """Return the places of indices; None if they are masks, or apart: then the result begins with theirs."""
    places = [place for place, one in enumerate(site.argument(1)) if one is not None]
    listed = site.several(1)
    if places != list(range(places[0], places[-1] + 1)) or site.read(0) in listed:
        return None
    if any(site.dtype(value) in (torch.bool, torch.uint8) for value in listed):
        return None
    shape = torch.broadcast_shapes(*(site.shape(value) for value in listed))
    return _Indexed(places[0], len(places), tuple(shape))


def indexed(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `index(input, [None, …, indices])`, along indices or along what is not indexed."""
    read, places = site.read(0), _indexed(site)
    if read is None or places is None:
        return None
    start, _many, shape = places
    end = start + len(shape)
    if at in site.several(1) or (site.makes(at) and start <= along.start and along.stop <= end):
        own = len(shape if site.makes(at) else site.shape(at))
        rows = along.shifted(-start) if site.makes(at) else along.shifted(len(shape) - own)
        inputs: dict[int, Part] = {read: WHOLE}
        for value in site.several(1):
            if (part := broadcast(site.shape(value), shape, rows)) is None:
                return None
            inputs[value] = part
        return one_of(site, at, along, [(inputs, [rows.shifted(start)])])
    into, out = (places.in_input(along), along) if site.makes(at) else (along, places.in_result(along))
    return None if into is None or out is None else one_of(site, at, along, [({read: into}, [out])])


def put(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `index_put(input, [None, …, indices], values)` along what is not indexed."""
    first, values, places = site.read(0), site.read(2), _indexed(site)
    if first is None or values is None or places is None or values in (first, *site.several(1)):
        return None
    shape, (start, many, own) = site.shape(first), places
    if site.shape(values) != (*shape[:start], *own, *shape[start + many :]):
        return None  # they are broadcast
    into, out = (places.in_input(along), along) if at == values else (along, places.in_result(along))
    return (
        None
        if into is None or out is None
        else one_of(site, at, along, [({first: into, values: out}, [into])])
    )


def gathered(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `gather(input, dimension, index)` along other dimensions, or along this one of the index."""
    read, index = site.read(0), site.read(2)
    if read is None or index is None or read == index:
        return None
    dimension = site.dimension(1, read)
    # Along `dimension` any index of the input may be read: it can't be cut there, the indices can.
    if along != Along(dimension, dimension + 1):
        return _OTHER_DIMENSIONS(site, at, along)
    return one_of(site, at, along, [({index: along}, [along])])


def selected_into(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `select_scatter(input, part, dimension, index)` along other dimensions."""
    first, part = site.read(0), site.read(1)
    if first is None or part is None or first == part:
        return None
    dimension = site.dimension(2, first)
    rows = inserts(along, dimension) if at == part else along
    into = None if rows is None else drops(rows, dimension)
    if rows is None or into is None:
        return None
    return one_of(site, at, along, [({first: rows, part: into}, [rows])])


PLACES: dict[str, Rule] = {
    # Indices have rows; the table is whole, since any of its rows may be picked.
    "embedding": aligned(nothing, (1,)),
    "embedding_dense_backward": looked_up_backward,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _OTHER_DIMENSIONS),
    "index_select": aligned(named(), (0,)),
    "index_add": aligned(named(), (0, 3)),
    "slice_scatter": _OTHER_DIMENSIONS,
    "select_scatter": selected_into,
    "index": indexed,
    "index_put": put,
    "gather": gathered,
    **dict.fromkeys(("bucketize", "isin"), aligned(nothing, (0,))),
}
