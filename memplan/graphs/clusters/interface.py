"""The bytes that pass between a cluster's forward part and the rest of it: what (3.1) minimizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency
from ..arrays import Ints
from .clusters import Cluster, Partition


class Interface(NamedTuple):
    """Bytes that cross the boundary of a cluster's forward part.

    reads: tensors read that forward operations outside produce.
    makes: tensors produced that those or the loss read, or that are results.
    Batch and persistent tensors do not count: they are there anyway.
    """

    reads: int
    makes: int


@dataclass(frozen=True, eq=False)
class Spans:
    """Per tensor the first and last positions in cluster order at which it is produced and at which it is
    used.

    The middle and the end of the iteration come last of all. Without any, `made_last`, `used_last` are -1.
    """

    made_first: Ints
    made_last: Ints
    used_first: Ints
    used_last: Ints

    @staticmethod
    def of(partition: Partition) -> Spans:
        """Compute the spans of all tensors. Linear in the graph's edges."""
        graph, end = partition.graph, len(partition.forward)
        position = np.full(len(graph.operations), -1, np.int64)
        position[partition.forward] = np.arange(end)
        position[partition.middle] = end
        uses = (graph.operations.reads, graph.operations.mutates)
        made_first, made_last = _extremes(position, [graph.operations.writes], len(graph.tensors))
        used_first, used_last = _extremes(position, uses, len(graph.tensors))
        used_last[list(graph.results)] = end  # they are read when the iteration ends
        return Spans(made_first, made_last, used_first, used_last)

    def interface(self, cluster: Cluster) -> Interface:
        """Compute the bytes at the boundary of a cluster's forward part. Linear in the cluster's edges."""
        partition, inside = cluster.partition, cluster.forward
        operations, size = partition.graph.operations, partition.graph.tensors.bytes
        first, end = int(partition.first[cluster.index]), int(partition.end[cluster.index])
        used = np.union1d(_entries(operations.reads, inside), _entries(operations.mutates, inside))
        made = np.unique(_entries(operations.writes, inside))
        reads = used[
            # made_last is -1 for what no operation up to the loss makes: it is there anyway.
            (self.made_last[used] >= end) | ((self.made_last[used] >= 0) & (self.made_first[used] < first))
        ]
        # A sum with contributions from inside and outside counts once, as read.
        made = np.setdiff1d(made, reads)
        makes = made[(self.used_last[made] >= end) | (self.used_first[made] < first)]
        return Interface(int(size[reads].sum()), int(size[makes].sum()))


def _extremes(
    position: Ints, edges: list[Adjacency] | tuple[Adjacency, ...], tensors: int
) -> tuple[Ints, Ints]:
    first, last = np.full(tensors, len(position) + 1, np.int64), np.full(tensors, -1, np.int64)
    for rows in edges:
        at = position[rows.rows()]
        np.minimum.at(first, rows.columns[at >= 0], at[at >= 0])
        np.maximum.at(last, rows.columns[at >= 0], at[at >= 0])
    return first, last


def _entries(rows: Adjacency, operations: Ints) -> NDArray[np.int32]:
    """Return the columns of these rows, one after another."""
    count = rows.start[operations + 1] - rows.start[operations]
    # Per row, the offset of its entries from their position in the result.
    entry = np.repeat(rows.start[operations] - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    return rows.columns[entry]
