"""The tree of bytes per slot, against an array."""

from __future__ import annotations

from random import Random

import numpy as np
from memplan.solvers.recomputation.search.tree import add, memory_tree

SLOTS = 16


def test_the_root_is_the_largest_sum() -> None:
    random, tree, sums = Random(0), memory_tree(SLOTS), np.zeros(SLOTS, np.int64)
    for _ in range(300):
        first, last = random.randint(1, SLOTS - 2), random.randint(0, SLOTS - 2)
        amount = random.randint(-3, 9)
        add(tree, first, last, amount)
        sums[first : last + 1] += amount
        assert tree.largest[1] == sums.max()
