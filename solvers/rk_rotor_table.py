"""Rk-Rotor's dynamic program Opt(s, t, m): the least time to process blocks s … t with m slots of memory.

As Rotor's (rotor_table.py), with a choice of options where block s runs once. Equations: thesis (Zhao 2024),
2.5.3, where t is one more, the base case is Opt(s, s+1, m) and the rest of 2.20 is Opt(s+1, t, m - x̄_s^o):

    (2.20)  Opt_1 = min over options o > 0 of r(F_s^o) + r(B_s^o) + Opt(s+1, t, m - x̄_s^o)
    (2.21)  Opt_2 = min over s < i <= t of r(F_s^0) + … + r(F_{i-1}^0) + Opt(i, t, m - x_i) + Opt(s, i-1, m)
    (2.22)  Opt   = min(Opt_1, Opt_2);  Opt(s, s, m) = min over o > 0 of r(F_s^o) + r(B_s^o)

each where the temporary memory of what runs fits as well: that of F_s^o and B_s^o, of F_s^0 … F_{i-1}^0.
Takes O(L² M (L + B)) elementary steps for L blocks, M slots and B options a block, vectorised over m, and
16 L² M bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .chain_costs import Bytes, thresholds
from .chain_runs import Pass
from .rk_rotor_costs import OptionCosts, OptionMove
from .rotor_table import Row, shifted


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
        blocks = len(costs.costs)
        self.costs, self.blocks, self.slots = costs, blocks, slots
        self.slot_bytes, self.spare_bytes = slot_bytes, spare_bytes
        self.input: list[int] = (-(-costs.chain.input_bytes // slot_bytes)).tolist()
        self.saved: list[list[int]] = [(-(-block.saved // slot_bytes)).tolist() for block in costs.costs]
        self.before = np.concatenate([[0.0], np.cumsum(costs.chain.advance_seconds)])
        self.left = np.empty((blocks, blocks, slots + 1))
        self.right = np.empty((blocks, blocks, slots + 1))
        self.complete = self._fill(proceed)

    def _fill(self, proceed: Callable[[], bool]) -> bool:
        sums = np.empty((self.blocks, self.slots + 1))
        for t in range(self.blocks):
            advance = self._needed(thresholds(self.costs.chain, t)[0])
            later = np.full(self.slots + 1, np.inf)
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
                later = row
        return True

    def _once(self, s: int, t: int, later: Row) -> Row:
        """(2.20). later: Opt(s+1, t, ·)."""
        row = np.full(self.slots + 1, np.inf)
        block = self.costs.costs[s]
        lows = self._lows(s, t)
        if s == t:
            for low, seconds in zip(lows, block.turn.tolist(), strict=True):
                np.minimum(row[low:], seconds, out=row[low:])
            return row
        for low, seconds, saved in zip(lows, block.both.tolist(), self.saved[s], strict=True):
            if low <= self.slots:
                rest = (
                    later[low - saved : self.slots + 1 - saved] if saved >= 0 else shifted(later, saved)[low:]
                )
                np.minimum(row[low:], seconds + rest, out=row[low:])
        return row

    def _lows(self, s: int, t: int) -> list[int]:
        """Per option of block s: the least m with which it can be run, blocks up to t behind it."""
        block, passing = self.costs.costs[s], int(self.costs.chain.gradient_bytes[t])
        forward = passing + (block.turn_peak if s == t else block.forward_peak)
        lows = self._needed(np.maximum(forward, block.backward_peak))
        return lows if s == t else [max(low, saved) for low, saved in zip(lows, self.saved[s], strict=True)]

    def _needed(self, sizes: Bytes) -> list[int]:
        """The least m that stands for at least so many bytes."""
        return np.maximum(0, -((self.spare_bytes - sizes) // self.slot_bytes)).tolist()

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
                if s < t:
                    pending.append(((s + 1, t, min(m - self.saved[s][option], self.slots)),))
            else:
                yield from ((Pass.ADVANCE, k, 0) for k in range(s, split))
                pending.append(((s, split - 1, m),))
                pending.append(((split, t, m - self.input[split]),))

    def _choice(self, s: int, t: int, m: int) -> tuple[int, int | None]:
        """The best option of (2.20), and the i of (2.21) where that is better."""
        block, saved = self.costs.costs[s], self.saved[s]
        if s == t:
            once = block.turn.tolist()
        else:
            later = self.left[s + 1, t] - self._advance_seconds(s + 1, t + 1)
            rests = [float(later[min(m - size, self.slots)]) if size <= m else np.inf for size in saved]
            once = (block.both + rests).tolist()
        values = [value if low <= m else np.inf for value, low in zip(once, self._lows(s, t), strict=True)]
        option = min(range(len(values)), key=values.__getitem__)
        if s == t or m < self._needed(thresholds(self.costs.chain, t)[0])[s]:
            return option, None
        choices = self.left[s, s:t, m] + self.right[t, s + 1 : t + 1, m]
        split = float(choices.min())
        return option, None if values[option] <= split else s + 1 + int(choices.argmin())
