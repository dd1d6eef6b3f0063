"""Random costs of chains of blocks, and random persistent sequences of them."""

from __future__ import annotations

from random import Random

import numpy as np
from memplan.solvers.chains.costs import ChainCosts
from memplan.solvers.chains.runs import Move, Pass


def random_costs(blocks: int, random: Random) -> ChainCosts:
    """Sizes of a few bytes, not always consistent with each other. Some blocks save less than they free."""

    def sizes(low: int, high: int) -> np.ndarray:
        return np.array([random.randint(low, high) for _ in range(blocks)], np.int64)

    def seconds() -> np.ndarray:
        return np.array([random.randint(1, 20) for _ in range(blocks)], np.float64)

    advance, extra = seconds(), seconds()
    return ChainCosts(
        advance,
        advance + extra,
        advance + extra / 2,
        seconds(),
        np.append(0, sizes(0, 4)[1:]),
        sizes(1, 9),
        np.append(sizes(0, 4)[1:], 0),
        *(sizes(1, high) for high in (6, 8, 9, 9, 12)),
        resident_bytes=0,
        fixed_seconds=0,
    )


def random_moves(blocks: int, random: Random) -> list[Move]:
    """Any persistent sequence: save the first block, or checkpoint somewhere."""

    def process(first: int, last: int) -> list[Move]:
        if first == last:
            return [(Pass.SAVE, first), (Pass.BACKWARD, first)]
        if random.random() < 0.4:
            return [(Pass.SAVE, first), *process(first + 1, last), (Pass.BACKWARD, first)]
        middle = random.randint(first + 1, last)
        advance: list[Move] = [(Pass.ADVANCE, b) for b in range(first, middle)]
        return advance + process(middle, last) + process(first, middle - 1)

    return process(0, blocks - 1)
