"""Memory over the slots of a sequence: add to a range, read the largest, both in O(log slots).

A binary tree over a power of two of slots. `added[k]` holds for all slots under node k; `largest[k]` is the
largest sum under node k, `added[k]` included and what its ancestors added left out. Ranges are walked from
both ends upwards, between two slots that stay outside: so the first and the last slot are never in a range.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.compiled import inner


class MemoryTree(NamedTuple):
    """The tree's arrays: bytes, int64, both of shape (2 · slots,).

    Node 1 is the root, node slots + s the leaf of slot s.
    """

    largest: NDArray[np.int64]
    added: NDArray[np.int64]


def memory_tree(slots: int) -> MemoryTree:
    """Return an empty tree.

    slots: a power of two.
    """
    return MemoryTree(np.zeros(2 * slots, np.int64), np.zeros(2 * slots, np.int64))


@inner
def add(tree: MemoryTree, first: int, last: int, amount: int) -> None:
    """Add `amount` to the slots first … last; nothing if last < first. 0 < first, last < slots − 1."""
    if last < first:
        return
    largest, added = tree
    slots = len(largest) // 2
    # The leaves just outside the range: slots 0 and `slots - 1` cannot be in one.
    left, right = first + slots - 1, last + slots + 1
    # Until both are children of one node. The sibling of a left child on the left, and of a right one on the
    # right, lies inside, whole.
    while left ^ right != 1:
        if not left & 1:
            largest[left ^ 1] += amount
            added[left ^ 1] += amount
        if right & 1:
            largest[right ^ 1] += amount
            added[right ^ 1] += amount
        left >>= 1
        right >>= 1
        largest[left] = max(largest[2 * left], largest[2 * left + 1]) + added[left]
        largest[right] = max(largest[2 * right], largest[2 * right + 1]) + added[right]
    while left > 1:
        left >>= 1
        largest[left] = max(largest[2 * left], largest[2 * left + 1]) + added[left]


@inner
def peak(tree: MemoryTree) -> int:
    return tree.largest[1]


@inner
def peak_slot(tree: MemoryTree) -> int:
    """Return the first slot with the largest sum."""
    slots = len(tree.largest) // 2
    node = 1
    while node < slots:
        node *= 2
        if tree.largest[node] < tree.largest[node + 1]:
            node += 1
    return node - slots


@inner
def largest_in(tree: MemoryTree, first: int, last: int) -> int:
    """Return the largest sum in the slots first … last, limits as for `add`; 0 if last < first."""
    if last < first:
        return 0
    largest, added = tree
    slots = len(largest) // 2
    left, right = first + slots - 1, last + slots + 1
    most_left, most_right = -(1 << 62), -(1 << 62)
    while left ^ right != 1:
        if not left & 1:
            most_left = max(most_left, largest[left ^ 1])
        if right & 1:
            most_right = max(most_right, largest[right ^ 1])
        left >>= 1
        right >>= 1
        # `largest` leaves out what the ancestors add: it is added on the way up, per side.
        most_left += added[left]
        most_right += added[right]
    most = max(most_left, most_right)
    while left > 1:
        left >>= 1
        most += added[left]
    return most
