"""Which clusters are identical: the same anonymous structure and sizes, and times close enough.

A cluster is read as a stream of numbers: its operations in canonical order (forward, then backward, in
file order), each with its flags, workspace, modes and the child it is in, and its tensors by the order in
which they appear, each with its bytes, kind and whether others make it, read it, or want it at the end.
Where streams are equal, what stands at the same place corresponds: no isomorphism is searched for.

Times, which are measured, come second: clusters of one structure are gone through in cluster order, and
each joins the first of its kind to which its distance  Σ |t − t'|  is at most tolerance · max(Σ t, Σ t').
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from .adjacency import Adjacency
from .graph import Graph

_KINDS_COMPARED = 32
"""At most so many clusters of the same structure but other times are compared with."""


@dataclass(frozen=True, eq=False)
class Identities:
    """names: per cluster."""

    names: Sequence[str]

    def name(self, cluster: int) -> str:
        return self.names[cluster]

    def alike(self, cluster: int) -> list[int]:
        """The clusters identical to this one, itself included, in cluster order."""
        return self._alike[self.names[cluster]]

    @cached_property
    def _alike(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for cluster, name in enumerate(self.names):
            rows.setdefault(name, []).append(cluster)
        return rows


def identities(
    graph: Graph,
    forward: NDArray[np.int64],
    backward: Adjacency,
    first: NDArray[np.int64],
    end: NDArray[np.int64],
    children: Adjacency,
    tolerance: float,
) -> Identities:
    """Arguments as in `Partition`."""
    results = set(graph.results)
    time = graph.operations.time
    kinds: dict[bytes, list[tuple[NDArray[np.float64], str]]] = {}
    names: list[str] = []
    for cluster in range(len(first)):
        a, b = int(first[cluster]), int(end[cluster])
        ahead = np.sort(forward[a:b])
        behind = np.sort(backward.columns[backward.start[a] : backward.start[b]].astype(np.int64))
        operations = np.concatenate([ahead, behind])
        child_of: dict[int, int] = {}
        for place, child in enumerate(children[cluster].tolist()):
            for o in (
                *forward[first[child] : end[child]].tolist(),
                *backward.columns[backward.start[first[child]] : backward.start[end[child]]].tolist(),
            ):
                child_of[o] = place
        labels: list[str] = [names[child] for child in children[cluster].tolist()]
        text = repr((len(ahead), labels, _stream(graph, operations.tolist(), child_of, results)))
        digest = blake2b(text.encode(), digest_size=8).digest()
        names.append(_joined(kinds.setdefault(digest, []), digest, time[operations], tolerance))
    return Identities(names)


def _stream(
    graph: Graph, operations: Sequence[int], child_of: dict[int, int], results: set[int]
) -> list[object]:
    inside = set(operations)
    local: dict[int, int] = {}
    stream: list[object] = []
    for o in operations:
        view = graph.operation(o)
        stream.append((view.phase, view.recompute, view.random, view.workspace, child_of.get(o, -1)))
        for edges in (view.reads, view.mutates, view.writes):
            row: list[int] = []
            for x in edges:
                if x not in local:
                    makers, readers = graph.producers[x].tolist(), graph.consumers[x].tolist()
                    stream.append(
                        (
                            int(graph.tensors.bytes[x]),
                            int(graph.tensors.kind[x]),
                            any(m not in inside for m in makers),
                            any(r not in inside for r in readers),
                            x in results,
                        )
                    )
                row.append(local.setdefault(x, len(local)))
            stream.append(tuple(row))
        stream.extend(
            (m.workspace, m.on_host, [local.get(x, -1) for x in (*m.writes, -1, *m.reads_host)])
            for m in view.modes
        )
    return stream


def _joined(
    kinds: list[tuple[NDArray[np.float64], str]], digest: bytes, times: NDArray[np.float64], tolerance: float
) -> str:
    total = float(times.sum())
    for other, name in kinds[:_KINDS_COMPARED]:
        if float(np.abs(times - other).sum()) <= tolerance * max(total, float(other.sum())):
            return name
    name = f"{digest.hex()}-{len(kinds)}"
    kinds.append((times, name))
    return name
