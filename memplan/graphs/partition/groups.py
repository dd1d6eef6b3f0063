"""One phase of H-Partition: candidates merged into groups, the best score first (Algorithm 7, lines 5 to 9).

A candidate, by its node x and the dominator a of what x follows (-1: the virtual source before all nodes):

    {x and its ancestors after a}, without x, with a, or both (3.3.1);  and {x, x + 1}

Nodes are numbered in a valid order, and 'after' is meant in it: a candidate reaches no further back than a,
even where its nodes need something from there (a shared tensor, the order of random numbers). If x itself
reads a shared tensor made after a, its producer stands for a, and stays outside. The last kind is new:
if no dominator is near, there is always a pair to merge.

Groups stay convex, together too, because each fulfils

    every node outside that a node of the group needs comes before all nodes of the group        (*)

For then the groups, by their first nodes, are in an order in which they may run. Property 3 of the thesis is
the case of but one such node, the head. (*) holds for all candidates as they are formed, and is checked
once more when one has grown by the groups that it overlaps.

Candidates are rescored when they are about to be merged, and go back if they score worse by then; those
that score better by now are found when all are scored anew, each time that a quarter of the groups is gone.
So merges follow the score, but for what became better since. With n nodes, groups of at most m: O(n m log n)
time.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Ints
from ..compiled import compiled
from .level import Columns

# Kinds 0 to 3: bit 0 leaves x out, bit 1 takes a in. Kind 4: {x, x + 1}.
_KINDS = 5
# Candidates only grow, as groups do: either reason stays, and the candidate is dropped for good.
_NONE, _ONE_GROUP = -1, -2
_INVALID = np.inf  # (*) may hold when groups have grown: the candidate is scored once more then
_MOST_VALUES = 1000
"""A node with more values is in no candidate as a: a score takes as long as they are many."""

_SAME = 1 + 1e-9
"""Scores within this factor are the same."""


class Groups(NamedTuple):
    """The groups of a phase, as arrays over the nodes.

    group: per node, the first node of its group. next: the nodes of a group, in a ring. size: number of
    nodes, at the group's first node.
    """

    group: Ints
    next: Ints
    size: Ints


class Notes(NamedTuple):
    """Scratch arrays for scoring candidates, reused from one to the next.

    nodes: of the candidate. mark: per node, the last candidate that held it. turn: that candidate's number,
    alone in the array. made, read: per value, the number of the candidate's nodes that write or read it.
    """

    nodes: Ints
    mark: Ints
    turn: Ints
    made: Ints
    read: Ints


def grouped(level: Columns, dominator: Ints, shared: Ints, top: int, lower: int, alpha: float) -> Ints:
    """Return per node the first node of its group.

    Merges until at most `top` groups are left, with all merges whose score equals the last one's, or until no
    group of at most `lower` nodes can be formed.

    shared: per node the last node that produces a shared value it reads, -1 if there is none.
    """
    group = np.arange(len(dominator))
    _group(level, dominator, shared, top, lower, alpha, group)
    return group


@compiled
def _group(
    level: Columns, dominator: Ints, shared: Ints, top: int, lower: int, alpha: float, group: Ints
) -> None:
    count = len(group)
    groups = Groups(group, np.arange(count), np.ones(count, np.int64))
    tensors = len(level.bytes)
    notes = Notes(
        np.empty(2 * lower + 2, np.int64),
        np.zeros(count, np.int64),
        np.zeros(1, np.int64),
        np.zeros(tensors, np.int64),
        np.zeros(tensors, np.int64),
    )
    alive = np.ones(_KINDS * count, np.bool_)
    left, last = count - _join_tieless(level, groups, notes, lower), -1.0
    scored = left
    heap = _scored(level, groups, notes, dominator, shared, alive, lower, alpha)
    while len(heap) > 0:
        score, candidate = heappop(heap)
        if left <= top and score > last * _SAME:
            break
        nodes = _collect(level, groups, notes, dominator, shared, candidate, lower)
        if nodes < 0:
            alive[candidate] = False
            continue
        now = _score(level, notes, nodes, alpha)
        if now == _INVALID:
            continue
        if now > score * _SAME:
            heappush(heap, (now, candidate))
            continue
        left -= _merge(groups, notes, nodes)
        last = now
        alive[candidate] = False
        if 4 * left <= 3 * scored and left > top:
            heap = _scored(level, groups, notes, dominator, shared, alive, lower, alpha)
            scored = left


@compiled
def _scored(
    level: Columns,
    groups: Groups,
    notes: Notes,
    dominator: Ints,
    shared: Ints,
    alive: NDArray[np.bool_],
    lower: int,
    alpha: float,
) -> list[tuple[float, int]]:
    # Numba takes the type of the empty list from this.
    heap = [(0.0, 0) for _ in range(0)]
    for candidate in range(len(alive)):
        if alive[candidate]:
            nodes = _collect(level, groups, notes, dominator, shared, candidate, lower)
            if nodes < 0:
                alive[candidate] = False
                continue
            score = _score(level, notes, nodes, alpha)
            if score != _INVALID:
                heap.append((score, candidate))
    heapify(heap)
    return heap


@compiled
def _collect(
    level: Columns, groups: Groups, notes: Notes, dominator: Ints, shared: Ints, candidate: int, lower: int
) -> int:
    """Note the candidate's nodes, with those of all groups that it touches. How many, or why none."""
    x, kind = candidate // _KINDS, candidate % _KINDS
    nodes, mark = notes.nodes, notes.mark
    notes.turn[0] += 1
    turn = notes.turn[0]
    nodes[0] = x
    mark[x] = turn
    found = 1
    if kind == 4:
        if x + 1 == len(dominator):
            return _NONE
        nodes[1] = x + 1
        mark[x + 1] = turn
        found = 2
    else:
        a = max(dominator[x], shared[x])
        # The dominator itself only: a shared tensor's producer stays outside.
        if kind >= 2 and (a < 0 or a > dominator[x] or _values(level, a) > _MOST_VALUES):
            return _NONE
        done = 0
        while done < found:
            # Rows are increasing: from the last on, all after the first p <= a come before a too.
            for k in range(level.needs_start[nodes[done] + 1] - 1, level.needs_start[nodes[done]] - 1, -1):
                p = level.needs[k]
                if p <= a:
                    break
                if mark[p] != turn:
                    if found > lower:
                        return _NONE
                    mark[p] = turn
                    nodes[found] = p
                    found += 1
            done += 1
        if kind % 2 == 1:
            mark[x] = 0  # no candidate has the number 0
            found -= 1
            nodes[0] = nodes[found]
        if kind >= 2:
            mark[a] = turn
            nodes[found] = a
            found += 1
    if found == 0 or found > lower:
        return _NONE
    base = found
    for i in range(base):
        # All nodes of each group that is touched, along its ring.
        other = groups.next[nodes[i]]
        while other != nodes[i]:
            if mark[other] != turn:
                if found == lower:
                    return _NONE
                mark[other] = turn
                nodes[found] = other
                found += 1
            other = groups.next[other]
    # As many nodes as the first one's group has: it is that group, and nothing is merged.
    return _ONE_GROUP if groups.size[groups.group[nodes[0]]] == found else found


@compiled
def _score(level: Columns, notes: Notes, count: int, alpha: float) -> float:
    """Return s_α (3.1) of the collected nodes, with one byte more; or a mark that (*) does not hold."""
    nodes, mark, turn = notes.nodes, notes.mark, notes.turn[0]
    made, read = notes.made, notes.read
    lowest = nodes[0]
    # (*): needs after the group's first node must be inside.
    for i in range(1, count):
        lowest = min(lowest, nodes[i])
    operations = 0
    for i in range(count):
        node = nodes[i]
        operations += level.operations[node]
        for k in range(level.needs_start[node + 1] - 1, level.needs_start[node] - 1, -1):
            if level.needs[k] <= lowest:
                break
            if mark[level.needs[k]] != turn:
                return _INVALID
    for i in range(count):
        for k in range(level.makes_start[nodes[i]], level.makes_start[nodes[i] + 1]):
            made[level.makes[k]] += 1
        for k in range(level.reads_start[nodes[i]], level.reads_start[nodes[i] + 1]):
            read[level.reads[k]] += 1
    between = 0.0
    for i in range(count):
        for k in range(level.makes_start[nodes[i]], level.makes_start[nodes[i] + 1]):
            x = level.makes[k]
            if made[x] > 0:
                if read[x] < level.readers[x] or made[x] < level.producers[x] or level.leaves[x]:
                    between += level.bytes[x]
                made[x] = -1  # -1: counted, if a second node makes it too
    for i in range(count):
        for k in range(level.reads_start[nodes[i]], level.reads_start[nodes[i] + 1]):
            x = level.reads[k]
            if read[x] > 0:
                # Made by none of the nodes, so it comes in from outside.
                if made[x] == 0:
                    between += level.bytes[x]
                read[x] = 0
    for i in range(count):
        for k in range(level.makes_start[nodes[i]], level.makes_start[nodes[i] + 1]):
            made[level.makes[k]] = 0
    # One byte more: else all candidates without bytes between would score 0, whatever their size.
    return float((between + 1.0) * operations**alpha)


@compiled
def _join_tieless(level: Columns, groups: Groups, notes: Notes, lower: int) -> int:
    """Join nodes without values (a counter of batches) to a neighbour, at no cost.

    Returns how many joined.
    """
    count, joined = len(groups.group), 0
    for x in range(count):
        other = x + 1 if x + 1 < count else x - 1
        if _values(level, x) == 0 and other >= 0 and groups.group[x] != groups.group[other]:
            found = 0
            for node in (x, other):
                first = groups.group[node]
                if found + groups.size[first] > lower:
                    found = 0
                    break
                for _ in range(groups.size[first]):
                    notes.nodes[found] = node
                    found += 1
                    node = groups.next[node]
            if found > 0:
                joined += _merge(groups, notes, found)
    return joined


@compiled
def _values(level: Columns, node: int) -> int:
    read = level.reads_start[node + 1] - level.reads_start[node]
    return read + level.makes_start[node + 1] - level.makes_start[node]


@compiled
def _merge(groups: Groups, notes: Notes, count: int) -> int:
    """Make the nodes collected, which are whole groups, one. By how many groups there are fewer."""
    nodes = notes.nodes
    first, merged = nodes[0], 0
    for i in range(count):
        first = min(first, nodes[i])
        # A group's first node bears its own number: this counts the groups.
        merged += groups.group[nodes[i]] == nodes[i]
    for i in range(count):
        groups.group[nodes[i]] = first
        groups.next[nodes[i]] = nodes[(i + 1) % count]
    groups.size[first] = count
    return merged - 1
