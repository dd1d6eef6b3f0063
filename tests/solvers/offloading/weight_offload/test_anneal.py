"""Moves of the search for orders, against lists."""

from __future__ import annotations

from itertools import product

import numpy as np
from memplan.solvers.offloading.weight_offload.anneal import moved


def test_an_entry_moves_and_the_others_keep_their_order() -> None:
    order = np.array([7, 3, 9, 1, 5])
    for at, to in product(range(len(order)), repeat=2):
        expected = order.tolist()
        expected.insert(to, expected.pop(at))
        assert moved(order, at, to).tolist() == expected, (at, to)
