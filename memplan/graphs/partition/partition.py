"""H-Partition: a graph as a hierarchy of small convex clusters (thesis, 3.3, Algorithm 7).

Bottom-up. Each phase groups the nodes of the level below, at first the forward operations, by candidates that
lie between a node and the closest dominator of its predecessors; the candidate with the least score

    s_α(C) = (bytes that go in or out of C) · (operations in C)^α                                      (3.1)

is merged first, into groups of at most M^l nodes; then groups become nodes, until at most M^t are left. If
the loss parts the graph, what comes before it is grouped; the backward part follows (clusters/backward.py).

    paper   here
    M^t     top     nodes of the top level, at most
    M^l     lower   children of any cluster below the root, at most
    α       alpha   how much a large cluster counts against itself; the paper's 0.5

Where we differ, and why:
- a(x) is a dominator, not an ancestor: else groups need not be convex (structure/dominators.py);
- shared tensors (masks, an encoder's output), the order of random numbers, and side branches of a few
  operations tie nothing together where dominators are sought (level.py);
- x and its neighbour x + 1 are a candidate too: if skip connections leave no dominators, the phases would
  never end without; what then keeps groups convex is (*) of groups.py;
- above the first level, a group may have twice the nodes that M^t asks for on average, but no more: the first
  operations read little, score well, and would else end in one large cluster;
- operations that no value ties to others join a neighbour before all;
- candidates that score as the last merged one are still merged when M^t is reached: of equal layers, all are
  merged or none, so that they stay identical;
- candidates are scored when they are about to be merged, not after each merge: O(n M^l log n), not O(n² log
  n).
"""

from __future__ import annotations

from math import ceil, inf, isfinite

import numpy as np

from ..clusters.clusters import Partition
from ..clusters.parts import parts
from ..clusters.tree import Tree
from ..errors import InputError
from ..graph import Graph
from ..structure.dominators import dominators
from .groups import grouped
from .level import level_of

TOP, LOWER, ALPHA, TOLERANCE = 20, 20, 0.5, 0.2
"""Defaults of `partition` and its users."""


def partition(
    graph: Graph, *, top: int = TOP, lower: int = LOWER, alpha: float = ALPHA, tolerance: float = TOLERANCE
) -> Partition:
    """Partition a graph into a hierarchy of clusters.

    top, lower, alpha: M^t, M^l, α.
    tolerance: how far the times of identical clusters may be apart, as a share of their sum; inf: structure
    and sizes alone count, 0: times must be equal.
    """
    _check(top, lower, alpha, tolerance)
    part = parts(graph)
    tree = Tree(len(part.forward))
    if len(part.forward) > top:
        level = level_of(graph, part)
        while len(level) > top:
            # A side branch has fewer than half as many nodes as a group may have.
            dominator = dominators(level.follows, lower // 2)
            most = min(lower, 2 * ceil(len(level) / top)) if tree.grown else lower
            first = grouped(level.columns, dominator, shared=level.shared(), top=top, lower=most, alpha=alpha)
            firsts, group = np.unique(first, return_inverse=True)
            tree.group(group, len(firsts))
            level = level.merged(group, len(firsts))
    return tree.partition(graph, part, tolerance)


def _check(top: int, lower: int, alpha: float, tolerance: float) -> None:
    if top < 1:
        raise InputError(f"the top level must have room for one node at least, not {top}")
    if lower < 2:
        raise InputError(f"a cluster must have room for two nodes at least, not {lower}")
    if not isfinite(alpha) or not 0 <= alpha <= 8:
        raise InputError(f"alpha must lie between 0 and 8, not {alpha}")
    if not 0 <= tolerance <= inf:
        raise InputError(f"the tolerance must be 0 or more, not {tolerance}")
