"""Rk-Rotor's dynamic program Opt(s, t, m): the least time to process blocks s … t with m slots of memory.

As Rotor's (checkpointing/rotor_table.py), with a choice of options where block s runs once. Equations: thesis
(Zhao 2024), 2.5.3, where t is one more and the rest of 2.20 is Opt(s+1, t, m - x̄_s^o). Ours besides: an
option o may be one of blocks s … e joined (e = s in the paper).

    (2.20)  Opt_1 = min over options o > 0 of r(F_s^o) + r(B_s^o) + Opt(e+1, t, m - x̄_s^o), 0 for e = t
    (2.21)  Opt_2 = min over s < i <= t of r(F_s^0) + … + r(F_{i-1}^0) + Opt(i, t, m - x_i) + Opt(s, i-1, m)
    (2.22)  Opt   = min(Opt_1, Opt_2)

each where the temporary memory of what runs fits as well: that of F_s^o and B_s^o, of F_s^0 … F_{i-1}^0.
Takes O(L² M (L + B)) elementary steps for L blocks, M slots and B options that begin at a block, vectorised
over m, and 16 L² M bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...chains.costs import Bytes, thresholds
from ...chains.runs import Pass
from ..blocks.option import Option
from ..checkpointing.rotor_table import Row, shifted
from .costs import OptionCosts, OptionMove, Segment


@dataclass(frozen=True)
class Choice:
    """What runs once. forward, backward: bytes that these parts have, of what is not passing by."""

    segment: Segment
    option: Option
    forward: int
    backward: int


class RkRotorTable:
    """Opt(s, t, m) for 0 <= s <= t < L and 0 <= m <= slots; m stands for m · slot_bytes + spare_bytes.

    Sizes x and x̄ are rounded up to whole slots.
    """

    def __init__(
        self,
        costs: OptionCosts,
        slots: int,
        slot_bytes: int,
        spare_bytes: int = 0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> None:
        blocks = len(costs.starts)
        self.costs, self.blocks, self.slots = costs, blocks, slots
        self.slot_bytes, self.spare_bytes = slot_bytes, spare_bytes
        self.input: list[int] = (-(-costs.chain.input_bytes // slot_bytes)).tolist()
        self.saved: list[list[int]] = [(-(-start.saved // slot_bytes)).tolist() for start in costs.starts]
        self.before = np.concatenate([[0.0], np.cumsum(costs.chain.advance_seconds)])
        self.left = np.empty((blocks, blocks, slots + 1))
        self.right = np.empty((blocks, blocks, slots + 1))
        self.complete = self._fill(proceed)

    def _fill(self, proceed: Callable[[], bool]) -> bool:
        sums = np.empty((self.blocks, self.slots + 1))
        for t in range(self.blocks):
            advance: list[int] = self._needed(thresholds(self.costs.chain, t)[0]).tolist()
            later = {t + 1: np.zeros(self.slots + 1)}
            for s in range(t, -1, -1):
                if not proceed():
                    return False
                row = self._once(s, t, later)
                if s < t:
                    low = advance[s]
                    choices = sums[: t - s, low:]
                    np.add(self.left[s, s:t, low:], self.right[t, s + 1 : t + 1, low:], out=choices)
                    if choices.size:
                        np.minimum(row[low:], choices.min(axis=0), out=row[low:])  # (2.21), (2.22)
                self.left[s, t] = row + self._advance_seconds(s, t + 1)
                self.right[t, s] = shifted(row, self.input[s])
                later[s] = row
        return True

    def _once(self, s: int, t: int, later: Mapping[int, Row]) -> Row:
        """(2.20). later: Opt(e+1, t, ·) by e+1."""
        row = np.full(self.slots + 1, np.inf)
        start = self.costs.starts[s]
        seconds = np.where(start.last == t, start.turn, start.both).tolist()
        for low, last, time, saved in zip(
            self._lows(s, t), start.last.tolist(), seconds, self.saved[s], strict=True
        ):
            if low > self.slots:
                continue
            if last == t:
                np.minimum(row[low:], time, out=row[low:])
            else:
                within = later[last + 1][low - saved : self.slots + 1 - saved]
                rest = within if saved >= 0 else shifted(later[last + 1], saved)[low:]
                np.minimum(row[low:], time + rest, out=row[low:])
        return row

    def _lows(self, s: int, t: int) -> list[int]:
        """Per option that begins at s: the least m with which it runs, blocks up to t behind it.

        More than there is where it ends behind t.
        """
        start, passing = self.costs.starts[s], int(self.costs.chain.gradient_bytes[t])
        turns = start.last == t
        forward = passing + np.where(turns, start.turn_peak, start.forward_peak)
        lows = self._needed(np.maximum(forward, start.backward_peak))
        after = np.where(turns, 0, np.array(self.saved[s]))
        return np.where(start.last > t, self.slots + 1, np.maximum(lows, after)).tolist()

    def _needed(self, sizes: Bytes) -> Bytes:
        """The least m that stands for at least so many bytes."""
        return np.maximum(0, -((self.spare_bytes - sizes) // self.slot_bytes))

    def _advance_seconds(self, first: int, end: int) -> float:
        return float(self.before[end] - self.before[first])

    def times(self) -> Row:
        """Opt(0, L-1, m) for every m: the seconds of the whole chain."""
        return self.left[0, self.blocks - 1] - self._advance_seconds(0, self.blocks)

    def moves(self, slots: int) -> Iterator[OptionMove]:
        """Algorithm 6 for the whole chain with `slots` of memory, where `times()[slots]` is finite."""
        pending: list[OptionMove | tuple[tuple[int, int, int]]] = [((0, self.blocks - 1, slots),)]
        while pending:
            task = pending.pop()
            if len(task) == 3:
                yield task
                continue
            ((s, t, m),) = task
            option, split = self._choice(s, t, m)
            if split is None:
                yield Pass.SAVE, s, option
                pending.append((Pass.BACKWARD, s, option))
                pending += [(rest,) for rest in self._rest(s, t, m, option)]
            else:
                yield from ((Pass.ADVANCE, k, 0) for k in range(s, split))
                pending.append(((s, split - 1, m),))
                pending.append(((split, t, m - self.input[split]),))

    def _rest(self, s: int, t: int, m: int, option: int) -> list[tuple[int, int, int]]:
        """What is left behind an option: one subproblem, or none."""
        last = int(self.costs.starts[s].last[option])
        return [] if last == t else [(last + 1, t, min(m - self.saved[s][option], self.slots))]

    def choices(self, slots: int) -> Iterator[Choice]:
        """The options of the same moves, and the memory that each has."""
        passing = self.costs.chain.gradient_bytes
        pending = [(0, self.blocks - 1, slots)]
        while pending:
            s, t, m = pending.pop()
            option, split = self._choice(s, t, m)
            if split is not None:
                pending += [(s, split - 1, m), (split, t, m - self.input[split])]
                continue
            memory = m * self.slot_bytes + self.spare_bytes
            segment, chosen = self.costs.starts[s].options[option]
            behind = memory - int(passing[segment.last])
            yield Choice(segment, chosen, memory - int(passing[t]), behind)
            pending += self._rest(s, t, m, option)

    def _choice(self, s: int, t: int, m: int) -> tuple[int, int | None]:
        """The best option of (2.20), and the i of (2.21) where that is better."""
        lows = self._lows(s, t)
        values = [self._value(s, t, m, o) if low <= m else np.inf for o, low in enumerate(lows)]
        option = min(range(len(values)), key=values.__getitem__)
        if s == t or m < self._needed(thresholds(self.costs.chain, t)[0])[s]:
            return option, None
        choices = self.left[s, s:t, m] + self.right[t, s + 1 : t + 1, m]
        split = float(choices.min())
        return option, None if values[option] <= split else s + 1 + int(choices.argmin())

    def _value(self, s: int, t: int, m: int, option: int) -> float:
        """What an option that fits gives in (2.20)."""
        start = self.costs.starts[s]
        if not (rest := self._rest(s, t, m, option)):
            return float(start.turn[option])
        ((first, _t, slots),) = rest
        later = self.left[first, t, slots] - self._advance_seconds(first, t + 1)
        return float(start.both[option] + later)
