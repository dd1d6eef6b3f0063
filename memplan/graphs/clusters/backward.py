"""The position of each backward operation, in cluster order: that of the forward operation it serves.

Forward tensors (and weights) that a backward operation reads tie it to the operations that make or read
them. It serves the one to which most of them tie it, the last such that does not come after the backward
operations it depends on: those have run by then. Tied to none, it stays with the last of these. An operation
that depends on nothing (constants) goes to its first reader to run.

So positions never rise along dependencies, and any ranges of positions, run from last to first, are a valid
backward order: property 1 at every level. Linear in the edges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency, Indices
from ..compiled import compiled
from ..graph import Graph

Operations = NDArray[np.int64]

_MOST = 64
"""Tensors with more makers and readers than this (masks, position biases) say little."""


def backward_positions(
    graph: Graph, needs: Adjacency, forward: Operations, middle: Operations, backward: Operations
) -> Operations:
    """Return per backward operation its position in `forward`, which is in cluster order and not empty."""
    position = np.full(len(graph.operations), -1, np.int64)
    position[forward] = np.arange(len(forward))
    tied = _ties(graph, position >= 0)
    loss = np.zeros(len(position), np.bool_)
    loss[middle] = True
    reads = graph.operations.reads
    placed = np.full(len(position), -1, np.int64)
    _place(backward, position, loss, *_columns(needs), *_columns(reads), *_columns(tied), placed)
    if (placed[backward] < 0).any():
        _place_free(backward, placed, *_columns(needs.transpose(len(position))))
    return placed[backward]


def _columns(rows: Adjacency) -> tuple[NDArray[np.int64], Indices]:
    return rows.start, rows.columns


def _ties(graph: Graph, within: NDArray[np.bool_]) -> Adjacency:
    """Return per tensor the forward operations that produce or read it; none if they are too many."""
    reads, writes = graph.operations.reads, graph.operations.writes
    operation = np.concatenate([reads.rows(), writes.rows()])
    tensor = np.concatenate([reads.columns, writes.columns])
    keep = within[operation]
    many = np.bincount(tensor[keep], minlength=len(graph.tensors)) > _MOST
    keep &= ~many[tensor]
    order = np.argsort(tensor[keep], kind="stable")
    start = np.zeros(len(graph.tensors) + 1, np.int64)
    np.cumsum(np.bincount(tensor[keep], minlength=len(graph.tensors)), out=start[1:])
    return Adjacency(start, operation[keep][order].astype(np.int32))


@compiled
def _place(
    backward: Operations,
    position: Operations,
    loss: NDArray[np.bool_],
    needs_start: NDArray[np.int64],
    needs: Indices,
    reads_start: NDArray[np.int64],
    reads: Indices,
    ties_start: NDArray[np.int64],
    ties: Indices,
    placed: Operations,
) -> None:
    """Write the position of each operation of `backward`, unless it depends on nothing and nothing ties it.

    position: of the forward operations, -1 for others.  loss: the middle.  placed: -1 for all.
    """
    last = position.max()
    votes = np.zeros(last + 1, np.int64)
    # In traced order: what b needs has its position, or is left for _place_free.
    for b in backward:
        limit, depends = last, False
        for k in range(needs_start[b], needs_start[b + 1]):
            # The loss gives no limit, but what depends on it alone may run first of all.
            depends = depends or loss[needs[k]] or placed[needs[k]] >= 0
            if placed[needs[k]] >= 0:
                limit = min(limit, placed[needs[k]])
        best, most = -1, 0
        for k in range(reads_start[b], reads_start[b + 1]):
            for j in range(ties_start[reads[k]], ties_start[reads[k] + 1]):
                p = position[ties[j]]
                # Positions above the limit run before what b needs.
                if p <= limit:
                    votes[p] += 1
                    if votes[p] > most or (votes[p] == most and p > best):
                        best, most = p, votes[p]
        # Entry by entry: clearing the whole array would cost operations × positions.
        for k in range(reads_start[b], reads_start[b + 1]):
            for j in range(ties_start[reads[k]], ties_start[reads[k] + 1]):
                votes[position[ties[j]]] = 0
        if most > 0:
            placed[b] = best
        elif depends:
            placed[b] = limit


@compiled
def _place_free(
    backward: Operations, placed: Operations, users_start: NDArray[np.int64], users: Indices
) -> None:
    """Place operations left at -1 with the first of their users to run, or at the position that runs last."""
    # From last to first: users have their positions before what they use.
    for row in range(len(backward) - 1, -1, -1):
        b = backward[row]
        if placed[b] < 0:
            placed[b] = 0
            # Users after the backward part have -1 and do not count; position 0 runs last.
            for k in range(users_start[b], users_start[b + 1]):
                placed[b] = max(placed[b], placed[users[k]])
