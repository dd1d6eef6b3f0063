"""The least memory of a sequence with options, exactly: checkpointing/rotor_least.py's recursion, with the
best option.

    N(s,t) = min(N_1, min over o of max(m_all^{s,t,o}, x̄_s^o + N(e+1, t)))   N_1: its least peak

where an option that begins at s ends at e; at e = t nothing follows. Takes O(L² (L + B)) elementary steps for
L blocks at each of which B options begin.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...chains.costs import Bytes, thresholds
from ...chains.runs import Pass
from .costs import OptionCosts, OptionMove

ENDLESS = 1 << 62
"""Bytes."""


class LeastOptionMemory:
    """need[s, t]: N(s, t) in bytes, without what is resident."""

    def __init__(self, costs: OptionCosts) -> None:
        blocks = len(costs.starts)
        self.costs = costs
        self.need = np.zeros((blocks, blocks), np.int64)
        for t in range(blocks):
            advance, _save = thresholds(costs.chain, t)
            for s in range(t, -1, -1):
                need = int(self._once(s, t).min())
                if s < t:
                    need = min(need, max(int(advance[s]), int(self._splits(s, t).min())))
                self.need[s, t] = need

    def _once(self, s: int, t: int) -> Bytes:
        """Per option that begins at s: what it takes; without end where it ends behind t."""
        start, passing = self.costs.starts[s], self.costs.chain.gradient_bytes[t]
        turn = np.maximum(passing + start.turn_peak, start.backward_peak)
        whole = np.maximum(passing + start.forward_peak, start.backward_peak)
        rest = start.saved + self.need[np.minimum(start.last + 1, t), t]
        need = np.where(start.last == t, turn, np.maximum(whole, rest))
        return np.where(start.last > t, ENDLESS, need)

    def _splits(self, s: int, t: int) -> Bytes:
        """For s' = s+1 … t: what the two parts need."""
        right = self.costs.chain.input_bytes[s + 1 : t + 1] + self.need[s + 1 : t + 1, t]
        return np.maximum(right, self.need[s, s:t])

    @property
    def bytes(self) -> int:
        """N of the whole chain."""
        return int(self.need[0, -1])

    def moves(self, memory: int) -> Iterator[OptionMove]:
        """The fastest option wherever one fits (the rest counted by its forward seconds), else the split
        most even in seconds. memory: bytes, at least `self.bytes`."""
        chain = self.costs.chain
        before = np.concatenate([[0.0], np.cumsum(chain.advance_seconds)])
        pending: list[OptionMove | tuple[tuple[int, int, int]]] = [((0, len(chain) - 1, memory),)]
        while pending:
            task = pending.pop()
            if len(task) == 3:
                yield task
                continue
            ((s, t, m),) = task
            start = self.costs.starts[s]
            seconds = before[t + 1] - before[start.last.clip(max=t) + 1] + start.both
            seconds = np.where(self._once(s, t) <= m, seconds, np.inf)
            option = int(seconds.argmin())
            if np.isfinite(seconds[option]):
                yield Pass.SAVE, s, option
                pending.append((Pass.BACKWARD, s, option))
                if (last := int(start.last[option])) < t:
                    pending.append(((last + 1, t, m - int(start.saved[option])),))
                continue
            middle = (before[s] + before[t + 1]) / 2
            uneven = np.where(self._splits(s, t) <= m, np.abs(before[s + 1 : t + 1] - middle), np.inf)
            split = s + 1 + int(uneven.argmin())
            yield from ((Pass.ADVANCE, k, 0) for k in range(s, split))
            pending.append(((s, split - 1, m),))
            pending.append(((split, t, m - int(chain.input_bytes[split])),))
