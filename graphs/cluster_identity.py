"""Which clusters are identical: the same anonymous structure and sizes, and times close enough.

A cluster is read as a stream of numbers: its operations in canonical order (forward, then backward, in
file order), each with its flags, workspace, modes and the child it is in, and its tensors by the order in
which they appear, each with its bytes, kind and whether others make it, read it, or want it at the end.
Where streams are equal, what stands at the same place corresponds: no isomorphism is searched for. Streams
are compared by 128 bits of hash; a child adds its own. Linear in the edges, for each level.

Times, which are measured, come second: clusters of one structure are gone through from the first to the last,
and each joins the first of its kind to which its distance  Σ |t − t'|  is at most
tolerance · max(Σ t, Σ t'). Times of modes are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .adjacency import Adjacency, Indices
from .compiled import compiled
from .graph import Graph

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

_KINDS_COMPARED = 32
"""A cluster is compared with at most so many of the same structure but other times."""

_WRITES = 2


@dataclass(frozen=True, eq=False)
class Identities:
    """Per cluster: hashes: of its structure, shape (clusters, 2).  kind: the number of the first cluster that
    is identical.  operations: row by row, in canonical order.
    """

    hashes: Hashes
    kind: Ints
    operations: Adjacency

    def name(self, cluster: int) -> str:
        first, second = self.hashes[cluster].tolist()
        return f"{first:016x}{second:016x}-{self._ordinal[cluster]}"

    def alike(self, cluster: int) -> Ints:
        """The clusters identical to this one, itself included."""
        at = np.searchsorted(self.kind[self._by_kind], [self.kind[cluster], self.kind[cluster] + 1])
        return self._by_kind[at[0] : at[1]]

    @cached_property
    def _by_kind(self) -> Ints:
        return np.argsort(self.kind, kind="stable")

    @cached_property
    def _ordinal(self) -> Ints:
        """Per cluster: how many kinds of its structure come before its own."""
        _values, structure = np.unique(self.hashes, axis=0, return_inverse=True)
        firsts = np.flatnonzero(self.kind == np.arange(len(self.kind)))
        order = firsts[np.argsort(structure[firsts], kind="stable")]
        same = structure[order]
        ordinal = np.zeros(len(self.kind), np.int64)
        ordinal[order] = np.arange(len(order)) - np.searchsorted(same, same)
        return ordinal[self.kind]


class _Tree(NamedTuple):
    """Of `Partition`: first, end and the rows of `children`; position: of every operation in a cluster."""

    first: Ints
    end: Ints
    children_start: Ints
    children: Indices
    position: Ints


class _Edges(NamedTuple):
    """Row by row what an operation reads, changes and writes. role: 0, 1, 2 for these."""

    start: Ints
    tensor: Indices
    role: Ints


def identities(
    graph: Graph,
    forward: Ints,
    backward: Adjacency,
    first: Ints,
    end: Ints,
    children: Adjacency,
    tolerance: float,
) -> Identities:
    """Arguments as in `Partition`."""
    rows = graph.operations
    position = np.full(len(rows), -1, np.int64)
    position[forward] = np.arange(len(forward))
    position[backward.columns] = backward.rows()
    operations = _canonical(forward, backward, first, end)
    hashes = _hashes(
        operations.start,
        operations.columns,
        _Tree(first, end, children.start, children.columns, position),
        _edges(graph),
        _facts_of_operations(graph),
        _facts_of_tensors(graph),
    )
    _values, structure = np.unique(hashes, axis=0, return_inverse=True)
    kind = _kinds(structure.reshape(-1), operations.start, operations.columns, rows.time, tolerance)
    return Identities(hashes, kind, operations)


def _canonical(forward: Ints, backward: Adjacency, first: Ints, end: Ints) -> Adjacency:
    behind = backward.start[end] - backward.start[first]
    start = np.concatenate([[0], np.cumsum(end - first + behind)])
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


def _edges(graph: Graph) -> _Edges:
    rows = graph.operations
    roles = (rows.reads, rows.mutates, rows.writes)
    operation = np.concatenate([edges.rows() for edges in roles])
    order = np.argsort(operation, kind="stable")
    tensor = np.concatenate([edges.columns for edges in roles])[order]
    role = np.repeat(np.arange(3), [len(edges.columns) for edges in roles])[order]
    return _Edges(np.searchsorted(operation[order], np.arange(len(rows) + 1)), tensor, role)


def _facts_of_operations(graph: Graph) -> Hashes:
    """Shape (operations, 3): phase and flags, workspace, a hash of the modes."""
    rows = graph.operations
    facts = np.zeros((len(rows), 3), np.uint64)
    facts[:, 0] = rows.phase + 4 * rows.recompute.astype(np.uint64) + 8 * rows.random.astype(np.uint64)
    facts[:, 1] = rows.workspace
    for operation, modes in rows.modes.items():
        reads, writes = graph.read_lists[operation], rows.writes[operation].tolist()
        text = repr(
            [
                (
                    mode.on_host,
                    mode.workspace,
                    [writes.index(x) for x in mode.writes],
                    [reads.index(x) for x in mode.reads_host],
                )
                for mode in modes
            ]
        )
        facts[operation, 2] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return facts


def _facts_of_tensors(graph: Graph) -> Hashes:
    """Shape (tensors, 4): bytes; kind, and whether a result; how many write it; how many use it."""
    rows, count = graph.operations, len(graph.tensors)
    facts = np.empty((count, 4), np.uint64)
    result = np.zeros(count, np.uint64)
    result[list(graph.results)] = 1
    facts[:, 0] = graph.tensors.bytes
    facts[:, 1] = graph.tensors.kind + 8 * result
    facts[:, 2] = np.bincount(rows.writes.columns, minlength=count)
    uses = np.concatenate([rows.reads.columns, rows.mutates.columns])
    facts[:, 3] = np.bincount(uses, minlength=count)
    return facts


@compiled
def _hashes(
    start: Ints, operations: Indices, tree: _Tree, edges: _Edges, of_operations: Hashes, of_tensors: Hashes
) -> Hashes:
    clusters, tensors = len(start) - 1, len(of_tensors)
    hashes = np.zeros((clusters, 2), np.uint64)
    makers, users = np.zeros(tensors, np.uint64), np.zeros(tensors, np.uint64)
    number = np.full(tensors, -1)
    child_at = np.zeros(len(tree.position), np.int64)
    for cluster in range(clusters):
        row, own = operations[start[cluster] : start[cluster + 1]], hashes[cluster]
        _mix(own, np.uint64(tree.end[cluster] - tree.first[cluster]))
        child_at[tree.first[cluster] : tree.end[cluster]] = 0
        for k in range(tree.children_start[cluster], tree.children_start[cluster + 1]):
            child = tree.children[k]
            child_at[tree.first[child] : tree.end[child]] = k - tree.children_start[cluster]
            _mix(own, hashes[child, 0])
            _mix(own, hashes[child, 1])
        for o in row:
            for k in range(edges.start[o], edges.start[o + 1]):
                makers[edges.tensor[k]] += np.uint64(edges.role[k] == _WRITES)
                users[edges.tensor[k]] += np.uint64(edges.role[k] != _WRITES)
        seen = 0
        for o in row:
            _mix(own, np.uint64(child_at[tree.position[o]]))
            for fact in of_operations[o]:
                _mix(own, fact)
            for k in range(edges.start[o], edges.start[o + 1]):
                x = edges.tensor[k]
                if number[x] < 0:
                    number[x] = seen
                    seen += 1
                    _mix(own, of_tensors[x, 0])
                    _mix(own, of_tensors[x, 1])
                    _mix(own, np.uint64(2 * (makers[x] < of_tensors[x, 2]) + (users[x] < of_tensors[x, 3])))
                _mix(own, np.uint64(3 * number[x] + edges.role[k]))
        for o in row:
            for k in range(edges.start[o], edges.start[o + 1]):
                x = edges.tensor[k]
                makers[x], users[x], number[x] = 0, 0, -1
    return hashes


@compiled
def _mix(state: Hashes, word: np.uint64) -> None:
    """Take a word into a state of 128 bits (two rounds like those of SplitMix64, with other constants)."""
    a = (state[0] ^ word) * np.uint64(0x9E3779B97F4A7C15)
    b = (state[1] + word) * np.uint64(0xC2B2AE3D27D4EB4F)
    state[0] = (a ^ (a >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    state[1] = (b ^ (b >> np.uint64(32))) * np.uint64(0x94D049BB133111EB) + state[0]


@compiled
def _kinds(
    structure: Ints, start: Ints, operations: Indices, time: NDArray[np.float64], tolerance: float
) -> Ints:
    """Per cluster the first that is identical. structure: equal where the structure is."""
    clusters = len(structure)
    kind = np.arange(clusters)
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
            if apart == 0 or apart <= tolerance * max(mine, its):
                kind[cluster] = other
                break
            other = following[other]
        if kind[cluster] == cluster and compared[s] < _KINDS_COMPARED:
            compared[s] += 1
            if first[s] < 0:
                first[s] = cluster
            else:
                following[latest[s]] = cluster
            latest[s] = cluster
    return kind
