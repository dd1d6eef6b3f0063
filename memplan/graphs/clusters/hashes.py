"""A hash of each cluster's anonymous structure: all but names and times.

A cluster is read as a stream of numbers: its operations in canonical order, each with its flags, workspace,
modes and the child it is in, and its tensors by the order in which they appear, each with its bytes, kind and
whether others produce it or read it, or it is a result; children add their own hashes. 128 bits. Linear in
the edges, for each level.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..adjacency import Adjacency, Indices
from ..arrays import Ints
from ..compiled import compiled
from ..graph import Graph

Hashes = NDArray[np.uint64]

_WRITES = 2


class _Tree(NamedTuple):
    """The hierarchy of clusters as arrays, for compiled code.

    first, end, children: as in `Partition`, the children's rows as columns with `children_start`.
    position: per operation in a cluster, its position in cluster order.
    """

    first: Ints
    end: Ints
    children_start: Ints
    children: Indices
    position: Ints


class _Edges(NamedTuple):
    """The edges of all operations, row by row.

    role: 0 if an operation reads the tensor, 1 changes, 2 writes.
    """

    start: Ints
    tensor: Indices
    role: Ints


def structure_hashes(
    graph: Graph, operations: Adjacency, position: Ints, first: Ints, end: Ints, children: Adjacency
) -> Hashes:
    """Return a hash of each cluster's anonymous structure, shape (clusters, 2).

    operations: per cluster, in canonical order. position: of each in cluster order.
    first, end, children: as in `Partition`.
    """
    hashes = np.zeros((len(first), 2), np.uint64)
    _hash(
        operations.start,
        operations.columns,
        _Tree(first, end, children.start, children.columns, position),
        _edges(graph),
        _facts_of_operations(graph),
        _facts_of_tensors(graph),
        hashes,
    )
    return hashes


def _edges(graph: Graph) -> _Edges:
    rows = graph.operations
    roles = (rows.reads, rows.mutates, rows.writes)
    operation = np.concatenate([edges.rows() for edges in roles])
    order = np.argsort(operation, kind="stable")
    tensor = np.concatenate([edges.columns for edges in roles])[order]
    role = np.repeat(np.arange(3), [len(edges.columns) for edges in roles])[order]
    return _Edges(np.searchsorted(operation[order], np.arange(len(rows) + 1)), tensor, role)


def _facts_of_operations(graph: Graph) -> Hashes:
    """Return the facts of each operation, shape (operations, 3): phase and flags, workspace, a hash of the
    modes."""
    rows = graph.operations
    facts = np.zeros((len(rows), 3), np.uint64)
    # Phases are 0 to 3: each flag has a bit of its own.
    facts[:, 0] = rows.phase + 4 * rows.recompute.astype(np.uint64) + 8 * rows.random.astype(np.uint64)
    facts[:, 1] = rows.workspace
    for operation, modes in rows.modes.items():
        reads, writes = graph.read_lists[operation], rows.writes[operation].tolist()
        text = repr(
            [
                # Positions among the operation's own edges: identical clusters have other tensor indices.
                (
                    mode.on_host,
                    mode.workspace,
                    [writes.index(x) for x in mode.writes],
                    [reads.index(x) for x in mode.reads_host],
                    [writes.index(x) for x in mode.writes_host],
                )
                for mode in modes
            ]
        )
        facts[operation, 2] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return facts


def _facts_of_tensors(graph: Graph) -> Hashes:
    """Return the facts of each tensor, shape (tensors, 4).

    Bytes; kind, and whether it is a result; number of writes; number of uses.
    """
    rows, count = graph.operations, len(graph.tensors)
    facts = np.empty((count, 4), np.uint64)
    result = np.zeros(count, np.uint64)
    result[list(graph.results)] = 1
    facts[:, 0] = graph.tensors.bytes
    # Kinds are 0 to 6: the result's bit is the fourth.
    facts[:, 1] = graph.tensors.kind + 8 * result
    facts[:, 2] = np.bincount(rows.writes.columns, minlength=count)
    uses = np.concatenate([rows.reads.columns, rows.mutates.columns])
    facts[:, 3] = np.bincount(uses, minlength=count)
    return facts


@compiled
def _hash(
    start: Ints,
    operations: Indices,
    tree: _Tree,
    edges: _Edges,
    of_operations: Hashes,
    of_tensors: Hashes,
    hashes: Hashes,
) -> None:
    """Fill in the hash of each cluster, children before parents.

    start, operations: row i holds the operations of cluster i in canonical order.
    of_operations, of_tensors: the facts to mix in, per operation and tensor; the last two columns of a tensor
    are the numbers of its producers and uses in the whole graph.
    hashes: the output, shape (clusters, 2), 0 at first.
    """
    clusters, tensors = len(hashes), len(of_tensors)
    producers, users = np.zeros(tensors, np.uint64), np.zeros(tensors, np.uint64)
    number = np.full(tensors, -1)
    child_at = np.zeros(len(tree.position), np.int64)
    # Children have smaller numbers than their parents: their hashes are complete.
    for cluster in range(clusters):
        row, own = operations[start[cluster] : start[cluster + 1]], hashes[cluster]
        _mix(own, np.uint64(tree.end[cluster] - tree.first[cluster]))
        # Shared by all clusters: only entries of this one's range are written, and only these are read.
        child_at[tree.first[cluster] : tree.end[cluster]] = 0
        for k in range(tree.children_start[cluster], tree.children_start[cluster + 1]):
            child = tree.children[k]
            child_at[tree.first[child] : tree.end[child]] = k - tree.children_start[cluster]
            _mix(own, hashes[child, 0])
            _mix(own, hashes[child, 1])
        for o in row:
            for k in range(edges.start[o], edges.start[o + 1]):
                producers[edges.tensor[k]] += np.uint64(edges.role[k] == _WRITES)
                users[edges.tensor[k]] += np.uint64(edges.role[k] != _WRITES)
        seen = 0
        for o in row:
            _mix(own, np.uint64(child_at[tree.position[o]]))
            for fact in of_operations[o]:
                _mix(own, fact)
            for k in range(edges.start[o], edges.start[o + 1]):
                x = edges.tensor[k]
                # By first appearance: neither names nor indices count.
                if number[x] < 0:
                    number[x] = seen
                    seen += 1
                    _mix(own, of_tensors[x, 0])
                    _mix(own, of_tensors[x, 1])
                    # Whether operations outside the cluster produce it, or use it.
                    _mix(
                        own, np.uint64(2 * (producers[x] < of_tensors[x, 2]) + (users[x] < of_tensors[x, 3]))
                    )
                _mix(own, np.uint64(3 * number[x] + edges.role[k]))
        for o in row:
            for k in range(edges.start[o], edges.start[o + 1]):
                x = edges.tensor[k]
                # Only what this cluster touched: clearing whole arrays would cost clusters × tensors.
                producers[x], users[x], number[x] = 0, 0, -1


@compiled
def _mix(state: Hashes, word: np.uint64) -> None:
    """Take a word into a state of 128 bits (two rounds like those of SplitMix64, with other constants)."""
    # Products wrap at 64 bits, as intended.
    a = (state[0] ^ word) * np.uint64(0x9E3779B97F4A7C15)
    b = (state[1] + word) * np.uint64(0xC2B2AE3D27D4EB4F)
    state[0] = (a ^ (a >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    state[1] = (b ^ (b >> np.uint64(32))) * np.uint64(0x94D049BB133111EB) + state[0]
