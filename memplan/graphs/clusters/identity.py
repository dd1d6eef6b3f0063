"""Which clusters are identical: the same anonymous structure and sizes, and times close enough.

Operations correspond by canonical order (forward, then backward, in traced order), tensors by the order in
which they first appear: no isomorphism is searched for. Structures are compared by hash (hashes.py).

Times, which are measured, come second: clusters of one structure are gone through from the first to the last,
and each joins the first of its kind to which its distance  Σ |t − t'|  is at most
tolerance · max(Σ t, Σ t'). Times of modes are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency, Indices
from ..arrays import Ints
from ..compiled import compiled
from ..graph import Graph
from .hashes import Hashes, structure_hashes

_KINDS_COMPARED = 32
"""A cluster is compared with at most so many of the same structure but other times."""


@dataclass(frozen=True, eq=False)
class Identities:
    """The structure hashes of clusters, and which are identical.

    hashes: of each structure, shape (clusters, 2). kind: per cluster the number of the first cluster that is
    identical. operations: row by row, in canonical order.
    """

    hashes: Hashes
    kind: Ints
    operations: Adjacency

    def name(self, cluster: int) -> str:
        first, second = self.hashes[cluster].tolist()
        return f"{first:016x}{second:016x}-{self._ordinal[cluster]}"

    def identical(self, cluster: int) -> Ints:
        """Return the clusters identical to this one, itself included."""
        # Sorted by kind, the clusters of a kind are a range.
        at = np.searchsorted(self.kind[self._by_kind], [self.kind[cluster], self.kind[cluster] + 1])
        return self._by_kind[at[0] : at[1]]

    @cached_property
    def _by_kind(self) -> Ints:
        return np.argsort(self.kind, kind="stable")

    @cached_property
    def _ordinal(self) -> Ints:
        """Return per cluster the number of kinds of its structure that come before its own."""
        _values, structure = np.unique(self.hashes, axis=0, return_inverse=True)
        firsts = np.flatnonzero(self.kind == np.arange(len(self.kind)))
        order = firsts[np.argsort(structure[firsts], kind="stable")]
        same = structure[order]
        ordinal = np.zeros(len(self.kind), np.int64)
        ordinal[order] = np.arange(len(order)) - np.searchsorted(same, same)
        return ordinal[self.kind]


def identities(
    graph: Graph,
    forward: Ints,
    backward: Adjacency,
    first: Ints,
    end: Ints,
    children: Adjacency,
    tolerance: float,
) -> Identities:
    """Find the identical clusters of a partition. Arguments as in `Partition`."""
    rows = graph.operations
    position = np.full(len(rows), -1, np.int64)
    position[forward] = np.arange(len(forward))
    position[backward.columns] = backward.rows()
    operations = _canonical(forward, backward, first, end)
    hashes = structure_hashes(graph, operations, position=position, first=first, end=end, children=children)
    _values, structure = np.unique(hashes, axis=0, return_inverse=True)
    kind = np.arange(len(first))
    _compare(structure.reshape(-1), operations.start, operations.columns, rows.time, tolerance, kind)
    return Identities(hashes, kind, operations)


def _canonical(forward: Ints, backward: Adjacency, first: Ints, end: Ints) -> Adjacency:
    later = backward.start[end] - backward.start[first]
    start = np.concatenate([[0], np.cumsum(end - first + later)])
    columns = np.empty(int(start[-1]), np.int32)
    _fill(start, columns, forward, backward.start, backward.columns, first, end)
    return Adjacency(start, columns)


@compiled
def _fill(
    start: Ints,
    columns: Indices,
    forward: Ints,
    backward_start: Ints,
    backward: Indices,
    first: Ints,
    end: Ints,
) -> None:
    for cluster in range(len(first)):
        a, b = first[cluster], end[cluster]
        middle = start[cluster] + b - a
        columns[start[cluster] : middle] = np.sort(forward[a:b])
        columns[middle : start[cluster + 1]] = np.sort(backward[backward_start[a] : backward_start[b]])


@compiled
def _compare(
    structure: Ints, start: Ints, operations: Indices, time: NDArray[np.float64], tolerance: float, kind: Ints
) -> None:
    """Write per cluster the first that is identical.

    structure: equal for equal structures.  kind: its own number for each.
    """
    clusters = len(kind)
    # Per structure a linked list of kinds to compare with, oldest first: `first`, then `following`.
    first, compared = np.full(clusters, -1), np.zeros(clusters, np.int64)
    following, latest = np.full(clusters, -1), np.full(clusters, -1)
    for cluster in range(clusters):
        s = structure[cluster]
        other = first[s]
        while other >= 0:
            apart, mine, its = 0.0, 0.0, 0.0
            for k in range(start[cluster + 1] - start[cluster]):
                t, u = time[operations[start[cluster] + k]], time[operations[start[other] + k]]
                apart, mine, its = apart + abs(t - u), mine + t, its + u
            # Equal times are identical at any tolerance: inf · 0 would be nan, if all times are 0.
            if apart == 0 or apart <= tolerance * max(mine, its):
                kind[cluster] = other
                break
            other = following[other]
        # Beyond the limit a cluster is a kind of its own, but no later one is compared with it.
        if kind[cluster] == cluster and compared[s] < _KINDS_COMPARED:
            compared[s] += 1
            if first[s] < 0:
                first[s] = cluster
            else:
                following[latest[s]] = cluster
            latest[s] = cluster
