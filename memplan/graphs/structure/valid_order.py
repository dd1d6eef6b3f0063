"""Check whether operations, each run once and in its standard variant, may run in a given order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..graph import Graph


def is_valid_order(graph: Graph, order: Sequence[int]) -> bool:
    """Tell whether an order of all operations, each once, is valid. Near-linear in the edges."""
    place = np.empty(len(order), np.int64)
    place[list(order)] = np.arange(len(order))
    random = place[graph.operations.random]
    return bool(
        _complete_when_used(graph, place)
        and np.all(np.diff(random) > 0)  # first runs keep traced order
        and all(_keeps_sides(graph, x, place) for x in {x for row in graph.mutate_lists for x in row})
    )


def _complete_when_used(graph: Graph, place: NDArray[np.int64]) -> bool:
    """Tell whether every tensor is read, or changed in place, only after all its contributions."""
    writes, tensors = graph.operations.writes, len(graph.tensors)
    # A tensor without producers has -1 and is there before any use.
    made, used = np.full(tensors, -1, np.int64), np.full(tensors, len(place), np.int64)
    np.maximum.at(made, writes.columns, place[writes.rows()])
    for uses in (graph.operations.reads, graph.operations.mutates):
        np.minimum.at(used, uses.columns, place[uses.rows()])
    return bool(np.all(made < used))


def _keeps_sides(graph: Graph, tensor: int, place: NDArray[np.int64]) -> bool:
    """Tell whether every use of the tensor is on the same side of each change in place as in traced order."""
    changes = graph.mutators[tensor]
    users = np.union1d(graph.consumers[tensor], changes)
    places = place[users]
    return all(
        np.all(places[users < change] < place[change]) and np.all(places[users > change] > place[change])
        for change in changes
    )
