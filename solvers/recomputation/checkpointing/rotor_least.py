"""The least memory of a persistent sequence, exactly: Rotor's recursion with bytes in place of seconds.

N(s, t) is the least m for which C_BP(s, t, m) of rotor_table.py is finite, for sizes that are not rounded:

    N(s,s) = m_all^{s,s}
    N(s,t) = min(N_1, N_2)
    N_1    = max(m_∅^{s,t}, min over s < s' <= t of max(x_{s'-1} + N(s', t), N(s, s'-1)))
    N_2    = max(m_all^{s,t}, x̄_s + N(s+1, t))

Takes O(L³) elementary steps for L blocks. `moves` gives a sequence for a memory of at least N: it saves a
block wherever that fits, else puts the checkpoint that fits and splits the forward seconds most evenly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...chains.costs import Bytes, ChainCosts, thresholds
from ...chains.runs import Move, Pass


class LeastMemory:
    """need[s, t]: N(s, t) in bytes, without what is resident."""

    def __init__(self, costs: ChainCosts) -> None:
        blocks = len(costs)
        self.costs = costs
        self.need = np.zeros((blocks, blocks), np.int64)
        for t in range(blocks):
            advance, save = thresholds(costs, t)
            self.need[t, t] = save[t]
            for s in range(t - 1, -1, -1):
                split = max(advance[s], self._splits(s, t).min())
                store = max(save[s], costs.saved_bytes[s] + self.need[s + 1, t])
                self.need[s, t] = min(split, store)

    def _splits(self, s: int, t: int) -> Bytes:
        """For s' = s+1 … t: what the two parts need."""
        right = self.costs.input_bytes[s + 1 : t + 1] + self.need[s + 1 : t + 1, t]
        return np.maximum(right, self.need[s, s:t])

    @property
    def bytes(self) -> int:
        """N of the whole chain."""
        return int(self.need[0, -1])

    def moves(self, memory: int) -> Iterator[Move]:
        """memory: bytes, at least `self.bytes`."""
        costs = self.costs
        before = np.concatenate([[0.0], np.cumsum(costs.advance_seconds)])
        pending: list[Move | tuple[int, int, int]] = [(0, len(costs) - 1, memory)]
        while pending:
            task = pending.pop()
            if len(task) == 2:
                yield task
                continue
            s, t, m = task
            rest = m - int(costs.saved_bytes[s])
            if s == t or (m >= thresholds(costs, t)[1][s] and rest >= self.need[s + 1, t]):
                yield Pass.SAVE, s
                pending.append((Pass.BACKWARD, s))
                if s < t:
                    pending.append((s + 1, t, rest))
                continue
            middle = (before[s] + before[t + 1]) / 2
            uneven = np.where(self._splits(s, t) <= m, np.abs(before[s + 1 : t + 1] - middle), np.inf)
            split = s + 1 + int(uneven.argmin())
            yield from ((Pass.ADVANCE, k) for k in range(s, split))
            pending.append((s, split - 1, m))
            pending.append((split, t, m - int(costs.input_bytes[split])))
