"""Costs of the options of a chain's blocks: which tensors a block, or a few joined, may keep.

Rotor's chain has one option per block, which keeps all that its backward reads; Rk-Rotor's has any number.

| paper (thesis 2.5)      | here                        | meaning                                            |
|-------------------------|-----------------------------|----------------------------------------------------|
| o > 0 of block s        | rows start[s] … start[s+1]−1 | the options that begin there                      |
| e                       | last                        | the block where an option ends; s in the paper     |
| r(F_s^o) + r(B_s^o)     | both                        | seconds forward and backward                       |
|                         | turn                        | the same if the backward follows at once           |
| x̄_s^o                   | saved                       | what stays until the backward                      |
| tmp                     | forward_peak, backward_peak | what is saved counted too, the input not           |
|                         | turn_peak                   | of the forward if the backward follows at once     |
| o = 0                   | chain                       | forward that makes the output alone (costs.py)     |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import Bytes, ChainCosts, Seconds
from .runs import Move, Pass

OptionMove = tuple[Pass, int, int]
"""Kind of pass, the block's number, and the option it takes (SAVE and BACKWARD; 0 for ADVANCE)."""


@dataclass(frozen=True, eq=False)
class OptionCosts:
    """Costs of options, one entry per option, those of each block together, as in the table above.

    Peaks and `saved` are in bytes.
    """

    chain: ChainCosts
    start: NDArray[np.int64]
    last: NDArray[np.int64]
    both: Seconds
    turn: Seconds
    saved: Bytes
    forward_peak: Bytes
    turn_peak: Bytes
    backward_peak: Bytes

    def __len__(self) -> int:
        return len(self.last)


def single_options(costs: ChainCosts) -> OptionCosts:
    """Return Rotor's option for each block, which keeps all that its backward reads."""
    return OptionCosts(
        chain=costs,
        start=np.arange(len(costs) + 1),
        last=np.arange(len(costs)),
        both=costs.save_seconds + costs.backward_seconds,
        turn=costs.turn_seconds + costs.backward_seconds,
        saved=costs.saved_bytes,
        forward_peak=costs.save_peak,
        turn_peak=costs.turn_peak,
        backward_peak=costs.backward_peak,
    )


def without_options(moves: Iterable[OptionMove]) -> Iterator[Move]:
    """Yield the moves of a chain with one option per block."""
    return ((kind, block) for kind, block, _option in moves)
