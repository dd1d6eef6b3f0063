"""Rotor's dynamic program C_BP(s, t, m): the least time to process blocks s … t with m slots of memory.

Minimises the seconds of a *persistent* sequence: a checkpoint stays in memory until the backward that reads
it. Equation numbers: thesis (Zhao 2024), 2.1.2, after Beaumont et al. (Inria RR-9302, 2019).
Assumes sizes in whole slots. Takes O(L³ M) elementary steps for L blocks and M slots, vectorised to L² / 2
minima over contiguous rows, and 8 L² M bytes.

    (2.1)  C(s,s,m) = u_turn^s + u_b^s                                     if m >= m_all^{s,s}
    (2.2)  C(s,t,m) = min(C_1, C_2), ∞ where neither's memory suffices
    C_1    = min over s < s' <= t of  Σ_{s <= k < s'} u_f^k + C(s', t, m - x_{s'-1}) + C(s, s'-1, m)
                                                                           if m >= m_∅^{s,t}
    C_2    = u_all^s + C(s+1, t, m - x̄_s) + u_b^s                          if m >= m_all^{s,t}

m_∅ and m_all: chains/costs.py, g_t included. In (2.1) F_all makes only what B_s reads: u_turn <= u_all.

Two arrays hold each C twice, so that C_1 is one addition and one minimum, both over contiguous memory:
`left[s, u] = C(s, u, ·) + Σ_{s..u} u_f` and `right[t, s'] = C(s', t, · - x_{s'-1})`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ...chains.costs import Bytes, ChainCosts, thresholds
from ...chains.runs import Move, Pass

Row = NDArray[np.float64]


class RotorTable:
    """C(s, t, m) for all 0 <= s <= t < L and 0 <= m <= slots; m stands for m · slot_bytes + spare_bytes.

    Sizes x and x̄ are rounded up to whole slots, or down with `optimistic`: then no persistent sequence
    that fits the m it stands for is faster than C(0, L-1, m).
    """

    def __init__(
        self,
        costs: ChainCosts,
        slots: int,
        slot_bytes: int,
        spare_bytes: int = 0,
        *,
        optimistic: bool = False,
        proceed: Callable[[], bool] = lambda: True,
    ) -> None:
        def in_slots(sizes: Bytes) -> list[int]:
            return (sizes // slot_bytes if optimistic else -(-sizes // slot_bytes)).tolist()

        blocks = len(costs)
        self.costs, self.blocks, self.slots = costs, blocks, slots
        self.slot_bytes, self.spare_bytes = slot_bytes, spare_bytes
        self.input, self.saved = in_slots(costs.input_bytes), in_slots(costs.saved_bytes)
        self.both = (costs.save_seconds + costs.backward_seconds).tolist()
        self.turn = (costs.turn_seconds + costs.backward_seconds).tolist()
        self.before = np.concatenate([[0.0], np.cumsum(costs.advance_seconds)])
        self.left = np.empty((blocks, blocks, slots + 1))
        self.right = np.empty((blocks, blocks, slots + 1))
        self.complete = self._fill(proceed)

    def _fill(self, proceed: Callable[[], bool]) -> bool:
        sums = np.empty((self.blocks, self.slots + 1))
        for t in range(self.blocks):
            if not proceed():
                return False
            advance, save = self._thresholds(t)
            later = np.full(self.slots + 1, np.inf)
            for s in range(t, -1, -1):
                row = np.full(self.slots + 1, np.inf)
                if s == t:
                    row[save[s] :] = self.turn[s]  # (2.1)
                else:
                    low = max(save[s], self.saved[s])
                    row[low:] = self.both[s] + shifted(later, self.saved[s])[low:]  # C_2
                    low = advance[s]
                    choices = sums[: t - s, low:]
                    np.add(self.left[s, s:t, low:], self.right[t, s + 1 : t + 1, low:], out=choices)
                    if choices.size:
                        np.minimum(row[low:], choices.min(axis=0), out=row[low:])  # C_1
                self.left[s, t] = row + self._advance_seconds(s, t + 1)
                self.right[t, s] = shifted(row, self.input[s])
                later = row
        return True

    def _thresholds(self, t: int) -> tuple[list[int], list[int]]:
        """m_∅^{s,t} and m_all^{s,t} for s = 0 … t, in slots."""
        advance, save = thresholds(self.costs, t)
        return self._needed(advance), self._needed(save)

    def _needed(self, sizes: Bytes) -> list[int]:
        """The least m that stands for at least so many bytes."""
        return np.maximum(0, -((self.spare_bytes - sizes) // self.slot_bytes)).tolist()

    def _advance_seconds(self, first: int, end: int) -> float:
        return float(self.before[end] - self.before[first])

    def times(self) -> Row:
        """C(0, L-1, m) for every m: the seconds of the whole chain."""
        return self.seconds(0, self.blocks - 1)

    def seconds(self, first: int, last: int) -> Row:
        """C(first, last, m) for every m."""
        return self.left[first, last] - self._advance_seconds(first, last + 1)

    def moves(self, slots: int, first: int = 0, last: int | None = None) -> Iterator[Move]:
        """OptRec for the chain, or its blocks first … last, with `slots` of memory where that is finite."""
        last = self.blocks - 1 if last is None else last
        pending: list[Move | tuple[int, int, int]] = [(first, last, slots)]
        while pending:
            task = pending.pop()
            if len(task) == 2:
                yield task
                continue
            s, t, m = task
            split = None if s == t else self._split(s, t, m)
            if split is None:
                yield Pass.SAVE, s
                pending.append((Pass.BACKWARD, s))
                if s < t:
                    pending.append((s + 1, t, self._after_save(s, m)))
            else:
                yield from ((Pass.ADVANCE, k) for k in range(s, split))
                pending.append((s, split - 1, m))
                pending.append((split, t, m - self.input[split]))

    def _after_save(self, s: int, m: int) -> int:
        return min(m - self.saved[s], self.slots)

    def _split(self, s: int, t: int, m: int) -> int | None:
        """The s' of the best C_1, or None where C_2 is as good."""
        advance, save = self._thresholds(t)
        stored, split = np.inf, np.inf
        choices = self.left[s, s:t, m] + self.right[t, s + 1 : t + 1, m]
        if m >= max(save[s], self.saved[s]):
            rest = self.left[s + 1, t, self._after_save(s, m)] - self._advance_seconds(s + 1, t + 1)
            stored = self.both[s] + rest
        if m >= advance[s]:
            split = choices.min()
        return None if stored <= split else s + 1 + int(choices.argmin())


def shifted(row: Row, slots: int) -> Row:
    """row[m - slots] for every m: ∞ where that is below 0, the last entry where it is above."""
    result = np.full(len(row), np.inf if slots > 0 else row[-1])
    if 0 <= slots < len(row):
        result[slots:] = row[: len(row) - slots]
    elif -len(row) < slots < 0:
        result[:slots] = row[-slots:]
    return result
