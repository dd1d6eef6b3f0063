"""The dynamic program of Rotor and Rk-Rotor: the least time to process blocks s … t with m slots of memory.

Minimises the seconds of a *persistent* sequence: a checkpoint stays in memory until the backward that reads
it. Equations: thesis (Zhao 2024), 2.5.3, where t is one more and the rest of 2.20 is Opt(s+1, t, m - x̄_s^o);
with one option per block they are those of Rotor (2.1.2, after Beaumont et al., Inria RR-9302, 2019). In
addition an option o may be one of blocks s … e joined (e = s in the paper).

    (2.20)  Opt_1 = min over options o > 0 of r(F_s^o) + r(B_s^o) + Opt(e+1, t, m - x̄_s^o), 0 for e = t
    (2.21)  Opt_2 = min over s < i <= t of r(F_s^0) + … + r(F_{i-1}^0) + Opt(i, t, m - x_i) + Opt(s, i-1, m)
    (2.22)  Opt   = min(Opt_1, Opt_2), ∞ if neither's memory suffices

each if the temporary memory of what runs fits as well: that of F_s^o and B_s^o, of F_s^0 … F_{i-1}^0, with
g_t (costs.py). Assumes sizes in whole slots. Takes O(L² M (L + B)) elementary steps for L blocks, M slots and
B options that begin at a block, vectorised to minima over contiguous rows, and 8 L² M bytes.

Two arrays hold each Opt twice, so that Opt_2 is one addition and one minimum, both over contiguous memory:
`left[s, u] = Opt(s, u, ·) + Σ_{s..u} r(F^0)` and `right[t, i] = Opt(i, t, · - x_i)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from .costs import Bytes, advance_needs
from .options import OptionCosts, OptionMove
from .runs import Pass

Row = NDArray[np.float64]


class ChainTable:
    """Table of Opt(s, t, m) for all 0 <= s <= t < L and 0 <= m <= slots.

    m stands for m · slot_bytes + spare_bytes. Sizes x and x̄ are rounded up to whole slots, or down with
    `optimistic`: then no persistent sequence that fits the m it stands for is faster than Opt(0, L-1, m).

    complete: `proceed` has let it be filled.
    """

    def __init__(
        self,
        costs: OptionCosts,
        slots: int,
        slot_bytes: int,
        spare_bytes: int = 0,
        *,
        optimistic: bool = False,
        proceed: Callable[[], bool] = lambda: True,
    ) -> None:
        # Up: a plan that fits in slots fits in bytes. Down: no plan that fits in bytes is lost, so the value
        # is a bound.
        def in_slots(sizes: Bytes) -> Bytes:
            return sizes // slot_bytes if optimistic else -(-sizes // slot_bytes)

        blocks = len(costs.chain)
        self.costs, self.blocks, self.slots = costs, blocks, slots
        self.slot_bytes, self.spare_bytes = slot_bytes, spare_bytes
        self.input: list[int] = in_slots(costs.chain.input_bytes).tolist()
        self.saved = in_slots(costs.saved)
        self.start: list[int] = costs.start.tolist()
        self.last: list[int] = costs.last.tolist()
        self.before = np.concatenate([[0.0], np.cumsum(costs.chain.advance_seconds)])
        self.left = np.empty((blocks, blocks, slots + 1))
        self.right = np.empty((blocks, blocks, slots + 1))
        self.complete = self._fill(proceed)

    def _fill(self, proceed: Callable[[], bool]) -> bool:
        sums = np.empty((self.blocks, self.slots + 1))
        later = np.empty((self.blocks, self.slots + 1))  # Opt(s, t, ·) by s, of the t at work
        for t in range(self.blocks):
            options = slice(0, self.start[t + 1])
            lows: list[int] = self._option_lows(t, options).tolist()
            seconds: list[float] = self._option_seconds(t, options).tolist()
            advance_lows = self._advance_lows(t)
            # Opt(s, t) needs Opt(i, t) for i > s (`later`, `right`) and Opt(s, i - 1) for i <= t (`left`).
            for s in range(t, -1, -1):
                if not proceed():
                    return False
                # Opt_1; Opt_2 is added to it in place.
                row = self._once(s, t, lows, seconds, later)
                if s < t:
                    low = advance_lows[s]
                    choices = sums[: t - s, low:]
                    np.add(self.left[s, s:t, low:], self.right[t, s + 1 : t + 1, low:], out=choices)
                    if choices.size:
                        np.minimum(row[low:], choices.min(axis=0), out=row[low:])  # (2.21), (2.22)
                self.left[s, t] = row + self._advance_seconds(s, t + 1)
                self.right[t, s] = shifted(row, self.input[s])
                later[s] = row
        return True

    def _once(self, s: int, t: int, lows: list[int], seconds: list[float], later: Row) -> Row:
        """Compute the row of (2.20)."""
        row = np.full(self.slots + 1, np.inf)
        for option in range(self.start[s], self.start[s + 1]):
            low, time, last = lows[option], seconds[option], self.last[option]
            # It does not fit, or ends after t.
            if low > self.slots:
                continue
            if last == t:
                np.minimum(row[low:], time, out=row[low:])
                continue
            saved, rest = int(self.saved[option]), later[last + 1]
            # an option that frees more than it keeps leaves more memory than there are columns
            within = rest[low - saved : self.slots + 1 - saved] if saved >= 0 else shifted(rest, saved)[low:]
            np.minimum(row[low:], time + within, out=row[low:])
        return row

    def _option_lows(self, t: int, options: slice) -> Bytes:
        """Return per option the least m with which it runs, blocks up to t after it.

        It is more than there is for an option that ends after t.
        """
        costs = self.costs
        last, turns = costs.last[options], costs.last[options] == t
        peak = np.where(turns, costs.turn_peak[options], costs.forward_peak[options])
        needed = np.maximum(costs.chain.gradient_bytes[t] + peak, costs.backward_peak[options])
        # an option that ends at t turns at once: nothing is saved across later blocks
        lows = np.maximum(self._needed(needed), np.where(turns, 0, self.saved[options]))
        return np.where(last > t, self.slots + 1, lows)

    def _option_seconds(self, t: int, options: slice) -> Row:
        """Return per option the seconds forward and backward, blocks up to t after it."""
        # An option that ends at t has its backward at once, which saves making its output.
        turns = self.costs.last[options] == t
        return np.where(turns, self.costs.turn[options], self.costs.both[options])

    def _advance_lows(self, t: int) -> list[int]:
        """Return per block s = 0 … t the least m with which F_s^0 … F_{t-1}^0 run."""
        return self._needed(advance_needs(self.costs.chain, t)).tolist()

    def _needed(self, sizes: Bytes) -> Bytes:
        """Return the least m that stands for at least so many bytes."""
        return np.maximum(0, -((self.spare_bytes - sizes) // self.slot_bytes))

    def _advance_seconds(self, first: int, end: int) -> float:
        return float(self.before[end] - self.before[first])

    def times(self) -> Row:
        """Return Opt(0, L-1, m) for every m: the seconds of the whole chain."""
        return self.seconds(0, self.blocks - 1)

    def seconds(self, first: int, last: int) -> Row:
        """Return Opt(first, last, m) for every m."""
        return self.left[first, last] - self._advance_seconds(first, last + 1)

    def moves(self, slots: int, first: int = 0, last: int | None = None) -> Iterator[OptionMove]:
        """Yield the moves of Algorithm 6 (OptRec) for the chain, or its blocks first … last.

        slots: memory for which Opt is finite.
        """
        last = self.blocks - 1 if last is None else last
        pending: list[OptionMove | tuple[tuple[int, int, int]]] = [((first, last, slots),)]
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
                pending += [(rest,) for rest in self._rest(t, m, option)]
            else:
                yield from ((Pass.ADVANCE, k, 0) for k in range(s, split))
                pending.append(((s, split - 1, m),))
                pending.append(((split, t, m - self.input[split]),))

    def chosen(self, slots: int) -> Iterator[tuple[int, int, int]]:
        """Yield the options of the same moves, each with the t and the m of its subproblem."""
        pending = [(0, self.blocks - 1, slots)]
        while pending:
            s, t, m = pending.pop()
            option, split = self._choice(s, t, m)
            if split is not None:
                pending += [(s, split - 1, m), (split, t, m - self.input[split])]
                continue
            yield option, t, m
            pending += self._rest(t, m, option)

    def _rest(self, t: int, m: int, option: int) -> list[tuple[int, int, int]]:
        """Return the subproblem that is left after an option: one, or none."""
        last = self.last[option]
        return [] if last == t else [(last + 1, t, min(m - int(self.saved[option]), self.slots))]

    def _choice(self, s: int, t: int, m: int) -> tuple[int, int | None]:
        """Return the best option of (2.20), and the i of (2.21) if that is better."""
        # The table keeps values alone: a choice is recomputed, for the few subproblems of the answer.
        options = slice(self.start[s], self.start[s + 1])
        lows, seconds = self._option_lows(t, options), self._option_seconds(t, options)
        values = [
            self._value(t, m, options.start + number, time) if low <= m else np.inf
            for number, (low, time) in enumerate(zip(lows.tolist(), seconds.tolist(), strict=True))
        ]
        best = min(range(len(values)), key=values.__getitem__)
        option = options.start + best
        if s == t or m < self._advance_lows(t)[s]:
            return option, None
        choices = self.left[s, s:t, m] + self.right[t, s + 1 : t + 1, m]
        split = float(choices.min())
        return option, None if values[best] <= split else s + 1 + int(choices.argmin())

    def _value(self, t: int, m: int, option: int, time: float) -> float:
        """Return the value in (2.20) of an option that fits."""
        if not (rest := self._rest(t, m, option)):
            return time
        ((first, _t, slots),) = rest
        return float(time + (self.left[first, t, slots] - self._advance_seconds(first, t + 1)))


def shifted(row: Row, slots: int) -> Row:
    """Return row[m - slots] for every m: ∞ if that index is below 0, the last entry if it is above."""
    result = np.full(len(row), np.inf if slots > 0 else row[-1])
    if 0 <= slots < len(row):
        result[slots:] = row[: len(row) - slots]
    elif -len(row) < slots < 0:
        result[:slots] = row[-slots:]
    return result
