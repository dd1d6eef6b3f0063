"""The forward graph of one level of a partition: its nodes are operations, or the groups of the level below.

Nodes are numbered in an order in which they may run. Values are the tensors that lie between nodes, or leave
the forward part; batch and persistent tensors, there anyway, are none. Vectorised; sorting edges costs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency, Indices
from ..arrays import Ints
from ..clusters.parts import ALL_PAIRS, Parts
from ..graph import Graph
from ..structure.forward_cuts import forward_cuts


class Columns(NamedTuple):
    """A level as compiled code takes it: what `Level` says, rows as start and columns."""

    operations: Ints
    needs_start: Ints
    needs: Indices
    reads_start: Ints
    reads: Indices
    makes_start: Ints
    makes: Indices
    producers: Ints
    readers: Ints
    leaves: NDArray[np.bool_]
    bytes: Ints


@dataclass(frozen=True, eq=False)
class Level:
    """The graph of one level. Per node: operations: their number.  needs: the nodes that must run before it.
    follows: those of `needs` whose values it reads, but for shared ones.  reads, makes: its values.

    Per tensor: producers, readers: number of nodes that contribute to it, that read it.  leaves: something
    outside reads it.  bytes.
    """

    operations: Ints
    needs: Adjacency
    follows: Adjacency
    reads: Adjacency
    makes: Adjacency
    producers: Ints
    readers: Ints
    leaves: NDArray[np.bool_]
    bytes: Ints

    def __len__(self) -> int:
        return len(self.operations)

    def shared(self) -> Ints:
        """Return per node the last of `needs` that it does not follow, -1 if it follows all."""
        width = max(1, len(self))
        last = np.full(len(self), -1, np.int64)
        # Edges as numbers, node · width + predecessor: unique within either.
        keys, along = (edges.rows() * width + edges.columns for edges in (self.needs, self.follows))
        other = keys[~np.isin(keys, along, assume_unique=True)]
        np.maximum.at(last, other // width, other % width)
        return last

    @property
    def columns(self) -> Columns:
        return Columns(
            operations=self.operations,
            needs_start=self.needs.start,
            needs=self.needs.columns,
            reads_start=self.reads.start,
            reads=self.reads.columns,
            makes_start=self.makes.start,
            makes=self.makes.columns,
            producers=self.producers,
            readers=self.readers,
            leaves=self.leaves,
            bytes=self.bytes,
        )

    def merged(self, group: Ints, count: int) -> Level:
        """Return the level above, whose nodes are groups of this one's.

        group: per node its number in the level above, which numbers them in a valid order.
        """
        # weights make bincount return float64, exact here
        operations = np.bincount(group, self.operations, count).astype(np.int64)
        needs, follows = (
            _distinct(group[edges.rows()], group[edges.columns], count, count)
            for edges in (self.needs, self.follows)
        )
        makes, reads = ((group[edges.rows()], edges.columns) for edges in (self.makes, self.reads))
        return Level(operations, needs, follows, *_values(makes, reads, count, self.leaves), self.bytes)


def level_of(graph: Graph, parts: Parts) -> Level:
    """Return the level whose nodes are the forward operations, in traced order."""
    operations, count, tensors = graph.operations, len(parts.forward), len(graph.tensors)
    node = np.full(len(operations), -1, np.int64)
    node[parts.forward] = np.arange(count)
    after, before = node[parts.needs.rows()], node[parts.needs.columns]
    inside = (after >= 0) & (before >= 0)
    needs = _distinct(after[inside], before[inside], count, count)
    makes = _inside(node, [operations.writes])
    reads = _inside(node, [operations.reads, operations.mutates])
    leaves = np.zeros(tensors, np.bool_)
    leaves[list(graph.results)] = True
    middle = np.isin(operations.reads.rows(), parts.middle)
    # What the loss and the rest of the middle read leaves the forward part.
    leaves[operations.reads.columns[middle]] = True
    values = _values(makes, reads, count, leaves)
    follows = _follows(needs, values[1], values[0], _shared(graph, parts))
    return Level(np.ones(count, np.int64), needs, follows, *values, graph.tensors.bytes)


def _shared(graph: Graph, parts: Parts) -> NDArray[np.bool_]:
    """Return per tensor whether the best cut of the forward part keeps it for the whole iteration.

    Masks, position biases and an encoder's output are such tensors: without them as edges, their readers
    still form clusters with neighbouring operations.
    """
    order = np.sort(np.concatenate([parts.forward, parts.middle]))
    none = np.zeros(len(graph.tensors), np.bool_)
    shared = none.copy()
    shared[list(forward_cuts(graph, order, len(parts.forward), none).shared)] = True
    return shared


def _inside(node: Ints, edges: Sequence[Adjacency]) -> tuple[Ints, Indices]:
    """Return (node, tensor) of all edges of operations that are nodes."""
    nodes = np.concatenate([node[row.rows()] for row in edges])
    tensors = np.concatenate([row.columns for row in edges])
    return nodes[nodes >= 0], tensors[nodes >= 0]


def _follows(needs: Adjacency, makes: Adjacency, reads: Adjacency, shared: NDArray[np.bool_]) -> Adjacency:
    """Return the edges of `needs` along a value that is not shared; of many producers, from the last."""
    count = len(needs)
    producers = makes.transpose(len(shared))
    entry = ~shared[reads.columns]
    reader, tensor = reads.rows()[entry], reads.columns[entry]
    crowded = producers.counts()[tensor] > ALL_PAIRS
    first = np.where(crowded, producers.start[1:][tensor] - 1, producers.start[:-1][tensor])
    times = producers.start[1:][tensor] - first
    entries = np.repeat(first - np.cumsum(times) + times, times) + np.arange(int(times.sum()))
    along = np.repeat(reader, times) * count + producers.columns[entries]
    keys = needs.rows() * count + needs.columns
    kept = np.isin(keys, along)
    return _distinct(needs.rows()[kept], needs.columns[kept], count, count)


def _values(
    makes: tuple[Ints, Indices], reads: tuple[Ints, Indices], count: int, leaves: NDArray[np.bool_]
) -> tuple[Adjacency, Adjacency, Ints, Ints, NDArray[np.bool_]]:
    """Return reads, makes, producers, readers and leaves of a level.

    A node does not read what it produces; of that, `makes` keeps what others read or what leaves the forward
    part.
    """
    tensors = len(leaves)
    made = np.unique(makes[0] * tensors + makes[1])
    within = np.bincount(makes[1], minlength=tensors) > 0
    # Only what a node of the level makes is a value.
    read = np.unique((reads[0] * tensors + reads[1])[within[reads[1]]])
    read = read[~np.isin(read, made, assume_unique=True)]
    readers = np.bincount(read % tensors, minlength=tensors)
    made = made[(readers > 0)[made % tensors] | leaves[made % tensors]]
    producers = np.bincount(made % tensors, minlength=tensors)
    return _rows(read, count, tensors), _rows(made, count, tensors), producers, readers, leaves


def _distinct(row: Ints, column: Ints | Indices, count: int, width: int) -> Adjacency:
    # Edges within a group disappear.
    keep = row != column
    return _rows(np.unique(row[keep] * width + column[keep]), count, width)


def _rows(keys: Ints, count: int, width: int) -> Adjacency:
    """Return the adjacency with the given edges. keys: row · width + column, increasing."""
    start = np.searchsorted(keys, np.arange(count + 1) * width)
    return Adjacency(start.astype(np.int64), (keys % max(1, width)).astype(np.int32))
