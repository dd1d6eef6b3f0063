"""Slots of a sequence, found by chance or by being empty."""

from __future__ import annotations

import numpy as np

from ....graphs.compiled import compiled
from .events import EMPTY, Sequence

REACH = 6
"""How many slots are looked through for an empty one."""


@compiled
def random_run(sequence: Sequence) -> int:
    """A slot with a run."""
    slots = len(sequence.way)
    while True:
        slot = between(1, slots - 2)
        if sequence.way[slot] != EMPTY:
            return slot


@compiled
def empty_before(sequence: Sequence, slot: int) -> int:
    for at in range(slot - 1, max(0, slot - REACH), -1):
        if sequence.way[at] == EMPTY:
            return at
    return -1


@compiled
def between(first: int, end: int) -> int:
    """A random number from first to end − 1."""
    return np.random.randint(first, end)
