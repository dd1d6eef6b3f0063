"""The least memory of a persistent sequence, exactly: table.py's recursion with bytes instead of seconds.

N(s, t) is the least m for which Opt(s, t, m) is finite, for sizes that are not rounded:

    N(s,t) = min(N_1, N_2)
    N_1    = min over options o of max(peaks of F_s^o and B_s^o, x̄_s^o + N(e+1, t)), the rest 0 for e = t
    N_2    = max(m_∅^{s,t}, min over s < i <= t of max(x_i + N(i, t), N(s, i-1)))

An option that begins at s ends at e. Takes O(L² (L + B)) elementary steps for L blocks at each of which B
options begin.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .costs import Bytes, advance_needs
from .options import OptionCosts, OptionMove
from .runs import Pass

ENDLESS = 1 << 62
"""Bytes."""


class LeastMemory:
    """The least memory of each part of a chain. need[s, t]: N(s, t) in bytes, without what is resident."""

    def __init__(self, costs: OptionCosts) -> None:
        blocks = len(costs.chain)
        self.costs, self.start = costs, costs.start.tolist()
        self._next = costs.last + 1
        # below 0 for s > t: of nothing that is left, less than any option's own peaks
        self.need = np.full((blocks + 1, blocks), -ENDLESS)
        for t in range(blocks):
            advance = advance_needs(costs.chain, t)
            peaks = self._peaks(t)
            for s in range(t, -1, -1):
                need = int(self._once(s, t, peaks).min())
                if s < t:
                    need = min(need, max(int(advance[s]), int(self._splits(s, t).min())))
                self.need[s, t] = need

    def _peaks(self, t: int) -> Bytes:
        """Return per option its larger peak, with blocks up to t after it; infinite if it ends after t."""
        costs = self.costs
        forward = np.where(costs.last == t, costs.turn_peak, costs.forward_peak)
        peaks = np.maximum(costs.chain.gradient_bytes[t] + forward, costs.backward_peak)
        return np.where(costs.last > t, ENDLESS, peaks)

    def _once(self, s: int, t: int, peaks: Bytes) -> Bytes:
        """Return per option that begins at s what it takes."""
        options = slice(self.start[s], self.start[s + 1])
        rest = self.costs.saved[options] + self.need[self._next[options], t]
        return np.maximum(peaks[options], rest)

    def _splits(self, s: int, t: int) -> Bytes:
        """Return for i = s+1 … t what the two parts need."""
        right = self.costs.chain.input_bytes[s + 1 : t + 1] + self.need[s + 1 : t + 1, t]
        return np.maximum(right, self.need[s, s:t])

    @property
    def bytes(self) -> int:
        """N of the whole chain."""
        return int(self.need[0, -1])

    def moves(self, memory: int) -> Iterator[OptionMove]:
        """Yield the moves of a sequence that fits, fast ones preferred.

        The fastest option is taken wherever one fits (the rest counted by its forward seconds), else the
        split that is most even in seconds.

        memory: bytes, at least `self.bytes`.
        """
        costs = self.costs
        before = np.concatenate([[0.0], np.cumsum(costs.chain.advance_seconds)])
        pending: list[OptionMove | tuple[tuple[int, int, int]]] = [((0, len(costs.chain) - 1, memory),)]
        while pending:
            task = pending.pop()
            if len(task) == 3:
                yield task
                continue
            ((s, t, m),) = task
            options = slice(self.start[s], self.start[s + 1])
            last = costs.last[options]
            seconds = before[t + 1] - before[last.clip(max=t) + 1] + costs.both[options]
            seconds = np.where(self._once(s, t, self._peaks(t)) <= m, seconds, np.inf)
            best = int(seconds.argmin())
            if np.isfinite(seconds[best]):
                option = options.start + best
                yield Pass.SAVE, s, option
                pending.append((Pass.BACKWARD, s, option))
                if last[best] < t:
                    pending.append(((int(last[best]) + 1, t, m - int(costs.saved[option])),))
                continue
            middle = (before[s] + before[t + 1]) / 2
            uneven = np.where(self._splits(s, t) <= m, np.abs(before[s + 1 : t + 1] - middle), np.inf)
            split = s + 1 + int(uneven.argmin())
            yield from ((Pass.ADVANCE, k, 0) for k in range(s, split))
            pending.append(((s, split - 1, m),))
            pending.append(((split, t, m - int(costs.chain.input_bytes[split])),))
