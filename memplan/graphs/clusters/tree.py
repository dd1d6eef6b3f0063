"""A hierarchy of clusters while it is built, from the forward operations up, and then as columns."""

from __future__ import annotations

import numpy as np

from ..adjacency import Adjacency
from ..arrays import Ints
from ..graph import Graph
from .backward import backward_positions
from .clusters import Partition
from .parts import Parts


class Tree:
    """Clusters 0 … leaves - 1 are the forward operations in traced order.

    The others follow, lower ones first.
    """

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._count = leaves
        self._top = np.arange(leaves)
        self._children: list[Ints] = []
        self._sizes: list[Ints] = [np.zeros(leaves, np.int64)]

    @property
    def grown(self) -> bool:
        """Tell whether there is a cluster yet."""
        return self._count > self.leaves

    def group(self, group: Ints, count: int) -> None:
        """Put the clusters at the top into groups, numbered in cluster order. One alone stays what it is."""
        size = np.bincount(group, minlength=count)
        # Stable: within a group the order of the level below stays.
        order = np.argsort(group, kind="stable")
        # A group of one adds no cluster: its only member goes up.
        above = np.empty(count, np.int64)
        above[group] = self._top
        self._children.append(self._top[order][size[group[order]] > 1])
        self._sizes.append(size[size > 1])
        self._top = np.where(size > 1, self._count + np.cumsum(size > 1) - 1, above)
        self._count += int((size > 1).sum())

    def partition(self, graph: Graph, parts: Parts, tolerance: float) -> Partition:
        """Return the partition, with a root above the clusters at the top."""
        columns = np.concatenate([*self._children, self._top])
        start = np.cumsum(np.concatenate([[0], *self._sizes, [len(self._top)]]))
        first, end = _ranges(Adjacency(start, columns.astype(np.int32)), self.leaves)
        # Leaves are renumbered by their position in cluster order; other clusters keep their numbers.
        place = np.arange(len(first))
        place[: self.leaves] = first[: self.leaves]
        first[: self.leaves], end[: self.leaves] = np.arange(self.leaves), np.arange(1, self.leaves + 1)
        forward = np.empty(self.leaves, np.int64)
        forward[place[: self.leaves]] = parts.forward
        return Partition(
            graph=graph,
            forward=forward,
            backward=_backward(graph, parts, forward),
            first=first,
            end=end,
            children=Adjacency(start, place[columns].astype(np.int32)),
            middle=parts.middle,
            after=parts.after,
            tolerance=tolerance,
        )


def _ranges(children: Adjacency, leaves: int) -> tuple[Ints, Ints]:
    """Return per cluster its positions in cluster order."""
    size, first = np.ones(len(children), np.int64), np.zeros(len(children), np.int64)
    # Sizes are known from the leaves up, positions from the root down.
    for cluster in range(leaves, len(children)):
        size[cluster] = size[children[cluster]].sum()
    for cluster in range(len(children) - 1, leaves - 1, -1):
        row = children[cluster]
        first[row] = first[cluster] + np.cumsum(size[row]) - size[row]
    return first, first + size


def _backward(graph: Graph, parts: Parts, forward: Ints) -> Adjacency:
    """Return per position of the cluster order its backward operations."""
    position = parts.backward[:0]
    if len(forward):
        position = backward_positions(graph, parts.needs, forward, parts.middle, parts.backward)
    # Stable: operations of one position stay in traced order.
    order = np.argsort(position, kind="stable")
    start = np.searchsorted(position[order], np.arange(len(forward) + 1))
    return Adjacency(start.astype(np.int64), parts.backward[order].astype(np.int32))
