"""The closest common dominator of what each node follows, in one pass over a directed acyclic graph.

For candidate groups to be convex, a(x) of the thesis (3.3) must be the closest common *dominator* of the
direct predecessors of x, with a virtual source before all nodes, not their closest common ancestor. In an
acyclic graph that is the immediate dominator of x: the nearest common ancestor of the predecessors in the
tree of dominators, where x then goes below it.

Nearest common ancestors take O(log n) by jump pointers (Myers 1983, 10.1016/0020-0190(83)90106-0): every node
of the tree keeps its parent and one ancestor further up, as far as the digits of skew binary numbers say.
O(edges · log nodes) time, O(nodes) memory.
"""

from __future__ import annotations

import numpy as np

from ..adjacency import Adjacency, Indices
from ..arrays import Ints
from ..compiled import compiled


def dominators(follows: Adjacency, least: int = 0) -> Ints:
    """Return per node its immediate dominator, -1 for the virtual source. Nodes are in topological order.

    least: a predecessor with fewer ancestors than this, itself included, is a side branch (a mask made on the
    spot, a scalar), and does not count if another predecessor has as many.
    """
    parent = np.full(len(follows), -1)
    _dominators(follows.start, follows.columns, least, parent)
    return parent


@compiled
def _dominators(start: Ints, follows: Indices, least: int, parent: Ints) -> None:
    count = len(parent)
    jump, depth = np.full(count, -1), np.ones(count, np.int64)
    ancestors = np.empty(count, np.int64)
    marked, queue = np.full(count, -1), np.empty(least + 1, np.int64)
    for x in range(count):
        ancestors[x] = _ancestors(x, start, follows, least, marked, queue)
        most = 0
        for k in range(start[x], start[x + 1]):
            most = max(most, ancestors[follows[k]])
        a, first = -1, True
        for k in range(start[x], start[x + 1]):
            p = int(follows[k])
            if ancestors[p] < least <= most:
                continue
            a = p if first else _common(a, p, parent, jump, depth)
            first = False
        parent[x] = a
        if a >= 0:
            depth[x] = depth[a] + 1
            far = jump[a]
            even = depth[a] - (depth[far] if far >= 0 else 0)
            further = -1 if far < 0 else jump[far]
            beyond = (depth[far] if far >= 0 else 0) - (depth[further] if further >= 0 else 0)
            # Skew binary numbers: two jumps of equal length become one, so any ancestor is O(log n) jumps up.
            jump[x] = further if far >= 0 and even == beyond else a


@compiled
def _ancestors(x: int, start: Ints, follows: Indices, least: int, marked: Ints, queue: Ints) -> int:
    """Return the number of ancestors of x, x included, counted up to `least`."""
    found, done = 0, 0
    if least > 0:
        queue[0], found = x, 1
        marked[x] = x
    while done < found and found < least:
        for k in range(start[queue[done]], start[queue[done] + 1]):
            p = follows[k]
            if marked[p] != x and found < least:
                marked[p] = x
                queue[found] = p
                found += 1
        done += 1
    return found


@compiled
def _common(a: int, b: int, parent: Ints, jump: Ints, depth: Ints) -> int:
    """Return the nearest common ancestor of two nodes in the tree; -1 is its root, of depth 0."""
    while a != b:
        if a < 0 or b < 0:
            return -1
        if depth[a] < depth[b]:
            a, b = b, a
        # Take the jump only if it does not pass the other node's depth.
        if depth[a] > depth[b]:
            far = jump[a]
            a = far if far >= 0 and depth[far] >= depth[b] else parent[a]
        # Nodes of one depth have jumps of one length: if these lead to different nodes, both are below the
        # answer.
        elif jump[a] != jump[b]:
            a, b = jump[a], jump[b]
        else:
            a, b = parent[a], parent[b]
    return a
