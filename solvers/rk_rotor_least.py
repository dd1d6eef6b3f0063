"""The least memory of a sequence with options, exactly: rotor_least.py's recursion, with the best option.

    N(s,s) = min over o of m_all^{s,s,o}
    N(s,t) = min(N_1, min over o of max(m_all^{s,t,o}, x̄_s^o + N(s+1, t)))       N_1: rotor_least.py

Takes O(L² (L + B)) elementary steps for L blocks with B options each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .chain_costs import Bytes, thresholds
from .chain_runs import Pass
from .rk_rotor_costs import OptionCosts, OptionMove


class LeastOptionMemory:
    """need[s, t]: N(s, t) in bytes, without what is resident."""

    def __init__(self, costs: OptionCosts) -> None:
        blocks = len(costs.costs)
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
        """Per option of block s: what it takes to run the block once."""
        block, passing = self.costs.costs[s], self.costs.chain.gradient_bytes[t]
        if s == t:
            return np.maximum(passing + block.turn_peak, block.backward_peak)
        whole = np.maximum(passing + block.forward_peak, block.backward_peak)
        return np.maximum(whole, block.saved + self.need[s + 1, t])

    def _splits(self, s: int, t: int) -> Bytes:
        """For s' = s+1 … t: what the two parts need."""
        right = self.costs.chain.input_bytes[s + 1 : t + 1] + self.need[s + 1 : t + 1, t]
        return np.maximum(right, self.need[s, s:t])

    @property
    def bytes(self) -> int:
        """N of the whole chain."""
        return int(self.need[0, -1])

    def moves(self, memory: int) -> Iterator[OptionMove]:
        """The fastest option wherever one fits, else the split most even in seconds. memory: bytes, >= N."""
        chain = self.costs.chain
        before = np.concatenate([[0.0], np.cumsum(chain.advance_seconds)])
        pending: list[OptionMove | tuple[tuple[int, int, int]]] = [((0, len(chain) - 1, memory),)]
        while pending:
            task = pending.pop()
            if len(task) == 3:
                yield task
                continue
            ((s, t, m),) = task
            block = self.costs.costs[s]
            seconds = np.where(self._once(s, t) <= m, block.turn if s == t else block.both, np.inf)
            option = int(seconds.argmin())
            if np.isfinite(seconds[option]):
                yield Pass.SAVE, s, option
                pending.append((Pass.BACKWARD, s, option))
                if s < t:
                    pending.append(((s + 1, t, m - int(block.saved[option])),))
                continue
            middle = (before[s] + before[t + 1]) / 2
            uneven = np.where(self._splits(s, t) <= m, np.abs(before[s + 1 : t + 1] - middle), np.inf)
            split = s + 1 + int(uneven.argmin())
            yield from ((Pass.ADVANCE, k, 0) for k in range(s, split))
            pending.append(((s, split - 1, m),))
            pending.append(((split, t, m - int(chain.input_bytes[split])),))
