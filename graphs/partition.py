"""A hierarchical partition of a graph into convex clusters (H-Partition)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .adjacency import Adjacency
from .cluster import Partition
from .cluster_backward import backward_positions
from .graph import Graph
from .partition_parts import parts


def partition(
    graph: Graph, *, top: int = 30, lower: int = 20, alpha: float = 0.5, tolerance: float = 0.2
) -> Partition:
    del alpha
    part = parts(graph)
    forward = part.forward
    first, end, children = _windows(len(forward), top, lower)
    position = backward_positions(graph, part.needs, forward, part.middle, part.backward)
    order = np.argsort(position, kind="stable")
    start = np.searchsorted(position[order], np.arange(len(forward) + 1))
    backward = Adjacency(start.astype(np.int64), part.backward[order].astype(np.int32))
    return Partition(graph, forward, backward, first, end, children, part.middle, part.after, tolerance)


def _windows(count: int, top: int, lower: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Adjacency]:
    ranges = [(i, i + 1) for i in range(count)]
    rows: list[list[int]] = [[] for _ in range(count)]
    level = list(range(count))
    while len(level) > top:
        groups = [level[i : i + lower] for i in range(0, len(level), lower)]
        level = list[int]()
        for group in groups:
            level.append(len(ranges))
            ranges.append((ranges[group[0]][0], ranges[group[-1]][1]))
            rows.append(group)
    ranges.append((0, count))
    rows.append(level)
    first, end = np.array(ranges, np.int64).T
    return first, end, Adjacency.of(rows)
