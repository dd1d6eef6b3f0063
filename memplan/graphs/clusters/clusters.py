"""A graph as a hierarchy of clusters: groups of forward operations, each with its backward operations.

Forward operations stand in *cluster order*, a valid order in which every cluster, at every level, is a range;
each backward operation has a position there, so a cluster's backward part is a range too. Everything is kept
in columns; a `Cluster` is a view made on demand.

Property 1 (thesis, 3.2.1) holds at every level: children run forward from first to last, backward from last
to first. No forward operation needs anything of a later child, no backward operation anything of an earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency
from ..graph import Graph
from .identity import Identities, identities

Operations = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """The clusters of a graph. Cluster i < len(forward) is the forward operation at position i of the cluster
    order with its backward operations; the others hold at least one child each; the last is the root.

    forward: operations in cluster order.  backward: row i holds the backward operations at position i, in
    traced order.  first, end: per cluster, its positions.  children: per cluster, in cluster order.
    middle: the loss and what lies between the forward and the backward part.  after: what runs after all
    backward operations (updates, buffers copied back).  Both in traced order.
    tolerance: how far the times of identical clusters may be apart (see `identity`).
    """

    graph: Graph
    forward: Operations
    backward: Adjacency
    first: NDArray[np.int64]
    end: NDArray[np.int64]
    children: Adjacency
    middle: Operations
    after: Operations
    tolerance: float

    @property
    def root(self) -> Cluster:
        return Cluster(self, len(self.first) - 1)

    @cached_property
    def levels(self) -> int:
        """Return the number of levels of clusters: the root's counts, single operations do not."""
        height = np.zeros(len(self.first), np.int64)
        # Children have smaller numbers than their parent, and the root has the largest.
        for cluster in range(len(self.forward), len(height)):
            height[cluster] = 1 + height[self.children[cluster]].max(initial=0)
        return int(height[-1])

    @cached_property
    def identities(self) -> Identities:
        return identities(
            self.graph,
            self.forward,
            backward=self.backward,
            first=self.first,
            end=self.end,
            children=self.children,
            tolerance=self.tolerance,
        )

    def order(self) -> list[int]:
        """Return all operations as the clusters run.

        Forward from first to last, the middle, backward from last to first, then `after`.
        """
        backward = [o for row in reversed(self.backward.lists()) for o in row]
        return [*self.forward.tolist(), *self.middle.tolist(), *backward, *self.after.tolist()]


@dataclass(frozen=True, eq=False)
class Cluster:
    """One cluster, as a view for reading."""

    partition: Partition = field(repr=False)
    index: int

    @property
    def canonical(self) -> Operations:
        """Return its operations in the order in which identical clusters correspond.

        Forward, then backward, each in traced order.
        """
        return self.partition.identities.operations[self.index].astype(np.int64)

    @property
    def forward(self) -> Operations:
        """Return its forward operations, in traced order."""
        return np.sort(self.partition.forward[self._positions])

    @property
    def backward(self) -> Operations:
        """Return its backward operations, in traced order."""
        rows, at = self.partition.backward, self._positions
        return np.sort(rows.columns[rows.start[at.start] : rows.start[at.stop]].astype(np.int64))

    @property
    def children(self) -> tuple[Cluster, ...]:
        """Return its children; none for a forward operation with its backward operations."""
        return tuple(Cluster(self.partition, child) for child in self.partition.children[self.index].tolist())

    @property
    def identity(self) -> str:
        """Return a name that is equal for identical clusters.

        Their operations and tensors are the same but for their names (operations in canonical order, tensors
        as they are first used), with the same sizes and children of the same structure; and their times,
        operation by operation, differ in sum by at most `Partition.tolerance` of the larger total.
        """
        return self.partition.identities.name(self.index)

    def tensors(self) -> list[int]:
        """Return the tensors that its operations read, change and write, each once.

        Identical clusters list corresponding tensors in the same position.
        """
        graph, seen = self.partition.graph, dict[int, None]()  # a dict keeps the order of first use
        for operation in self.canonical.tolist():
            for edges in (graph.operations.reads, graph.operations.mutates, graph.operations.writes):
                seen.update(dict.fromkeys(edges[operation].tolist()))
        return list(seen)

    def times(self) -> NDArray[np.float64]:
        """Return per operation in canonical order its time in seconds, averaged over the identical
        clusters."""
        time = self.partition.graph.operations.time
        identical = self.partition.identities.identical(self.index)
        return np.mean(
            [time[Cluster(self.partition, other).canonical] for other in identical.tolist()], axis=0
        )

    def walk(self) -> Iterator[Cluster]:
        """Yield the cluster and all below it except single operations, the larger first."""
        yield self
        for child in self.children:
            if child.children:  # a single operation has no children
                yield from child.walk()

    @property
    def _positions(self) -> slice:
        return slice(int(self.partition.first[self.index]), int(self.partition.end[self.index]))
