"""The cuts of the forward order: positions that one tensor alone crosses.

A tensor crosses position p when an operation up to p makes it and a later forward operation reads it.
Batch and persistent tensors do not count, nor do *shared* tensors, which are kept for the whole
iteration instead: masks, position biases, an encoder's output that all decoder blocks read.

Which tensors to share: those whose forward span (operations from first producer to last reader) is at
least some length. Every length n, n/2, n/4, … is tried, and none at all; then the largest shared tensors are
taken back one by one. Whatever leaves the least estimate E of the memory that periodic checkpointing
would need wins:

    E = |shared| + min over k of (k · |x| + max(A / k, A_max))

|x|: mean bytes at a cut; A: bytes saved for backward; A_max: the most in one block; k: checkpoints. So a mask
that opens a cut in every layer is shared, a residual that opens a few cuts in its own layer is not.
Time: O(log n) vectorised passes over the forward part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Graph

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]

_TAKEN_BACK = 32
"""At most this many shared tensors are tried without."""


@dataclass(frozen=True)
class Spans:
    """The lifetimes of tensors produced in the forward part, as positions in the forward order: `made` first,
    `complete` from, `read` last (forward readers only; `complete` if there are none). saved: read in
    backward too."""

    length: int
    end: int
    tensor: Positions
    made: Positions
    complete: Positions
    read: Positions
    bytes: NDArray[np.int64]
    saved: Mask


@dataclass(frozen=True)
class Cuts:
    """The positions at which the forward order is cut.

    shared: tensors kept for the whole iteration. positions: the order is cut after each of them.
    output: per cut the tensor that crosses it, -1 if none does.
    """

    shared: frozenset[int]
    positions: Positions
    output: Positions


def forward_cuts(graph: Graph, order: Positions, end: int, forced: Mask) -> Cuts:
    """Return the cuts of the forward part, with the shared tensors for which memory is estimated smallest.

    order: the forward operations, in traced order.
    end: cuts lie before this position (the loss).
    forced: tensors to share in any case.
    """
    spans = _spans(graph, order, end)
    must = forced[spans.tensor]
    _estimate, shared = min(
        ((_memory(spans, candidate), candidate) for candidate in _candidates(spans, must)),
        key=lambda pair: pair[0],
    )
    shared = _take_back(spans, shared, must)
    positions, rows = _cuts(spans, shared)
    output = np.where(rows >= 0, spans.tensor[rows], -1) if len(spans.tensor) else rows
    return Cuts(frozenset(spans.tensor[shared].tolist()), positions, output)


def _spans(graph: Graph, order: Positions, end: int) -> Spans:
    position = np.full(len(graph.operations), -1, np.int64)
    position[order] = np.arange(len(order))
    tensors = len(graph.tensors)
    made, complete = np.full(tensors, len(order), np.int64), np.full(tensors, -1, np.int64)
    writes, reads = graph.operations.writes, graph.operations.reads
    at = position[writes.rows()]
    inside = at >= 0
    np.minimum.at(made, writes.columns[inside], at[inside])
    np.maximum.at(complete, writes.columns[inside], at[inside])
    read = complete.copy()
    at = position[reads.rows()]
    np.maximum.at(read, reads.columns[at >= 0], at[at >= 0])
    saved = np.zeros(tensors, np.bool_)
    saved[reads.columns[at < 0]] = True
    tensor = np.flatnonzero(complete >= 0)
    return Spans(
        length=len(order),
        end=end,
        tensor=tensor,
        made=made[tensor],
        complete=complete[tensor],
        read=read[tensor],
        bytes=graph.tensors.bytes[tensor],
        saved=saved[tensor],
    )


def _candidates(spans: Spans, must: Mask) -> Iterator[Mask]:
    yield must
    span = spans.read - spans.made
    length = spans.length
    while length > 1:
        yield must | (span >= length)
        length //= 2


def _take_back(spans: Spans, shared: Mask, must: Mask) -> Mask:
    rows = np.flatnonzero(shared & ~must)
    # Stable: equal sizes keep the order of tensors, so the result does not depend on the sort.
    largest = rows[np.argsort(-spans.bytes[rows], kind="stable")][:_TAKEN_BACK]
    least = _memory(spans, shared)
    for row in largest.tolist():
        without = shared.copy()
        without[row] = False
        estimate = _memory(spans, without)
        # At equal estimates share less: a shared tensor is kept for the whole iteration.
        if estimate <= least:
            least, shared = estimate, without
    return shared


def _cuts(spans: Spans, shared: Mask) -> tuple[Positions, Positions]:
    """Return all positions that at most one tensor crosses, and its row in `spans`, -1 if none does.

    Of neighbouring cuts that the same tensor crosses, only the first counts.
    """
    own = ~shared
    rows = np.flatnonzero(own)
    # Crossing p counts a tensor that is read after p, and once more one that is not complete at p: a sum
    # whose contributions lie on both sides can't be the one tensor of a cut.
    crossing = _count(spans.length, spans.made[own], spans.read[own])
    crossing += _count(spans.length, spans.made[own], spans.complete[own])
    # Where one tensor alone crosses, the sum of row numbers is its row.
    which = _count(spans.length, spans.made[own], spans.read[own], rows)
    positions = np.flatnonzero(crossing[: spans.end] <= 1)
    row = np.where(crossing[positions] == 1, which[positions], -1)
    # prepend=-1 drops cuts that nothing crosses before the first that a tensor crosses.
    first = np.diff(row, prepend=-1) != 0
    return positions[first], row[first]


def _count(length: int, first: Positions, last: Positions, weight: Positions | int = 1) -> Positions:
    """Return per position p the sum of the weights of the intervals with first <= p < last."""
    change = np.zeros(length + 1, np.int64)
    np.add.at(change, first, weight)
    np.subtract.at(change, last, weight)
    return np.cumsum(change)


def _memory(spans: Spans, shared: Mask) -> float:
    """Return the estimate E, in bytes."""
    positions, rows = _cuts(spans, shared)
    # rows is -1 where nothing crosses; bytes[-1] is then taken and replaced by 0.
    at_cut = np.where(rows >= 0, spans.bytes[rows], 0) if len(spans.bytes) else rows
    output = max(1.0, float(at_cut.mean())) if len(positions) else 1.0
    kept = spans.saved & ~shared
    block = np.searchsorted(positions, spans.made[kept])
    saved = np.bincount(block, spans.bytes[kept], minlength=len(positions) + 1)
    checkpoints = np.arange(1, len(positions) + 2)
    segments = checkpoints * output + np.maximum(saved.sum() / checkpoints, saved.max())
    return float(spans.bytes[shared].sum()) + float(segments.min())
