"""Which moments a residency program needs: those where what runs again and what is kept do not fit yet.

Let most_{o,t} ≤ 1 say how far operation o runs again after t in some answer: reruns_o, or what its windows
have from t on. Running again as much as that allows and keeping the rest takes, at the moment t,

    need_{x,t} = 1 where x is used after t, else the largest recomputed_{c,t} of those who read x
    kept_{x,t} = max(0, need_{x,t} − most_{p,t}),  recomputed_{p,t} = min(need_{x,t}, most_{p,t})   p makes x

Where that fits there is no need to look closer. One backward scan over the operations, for all moments at a
time. First runs in the file's order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats
from .facts import Facts


@dataclass(frozen=True, eq=False)
class Later:
    """How often operations run again. starts: operations at whose moments windows begin, increasing.

    runs: shape (windows + 2, operations); row k: from window k − 1 on; row 0 in all, the last row nothing.
    when: shape (windows + 1, operations); row k: before which first run those of window k − 1 are.
    """

    starts: NDArray[np.int64]
    runs: Floats
    when: NDArray[np.int64]

    @staticmethod
    def of(reruns: Floats) -> Later:
        """Without windows."""
        runs = np.array([reruns, np.zeros(len(reruns))])
        return Later(np.zeros(0, np.int64), runs, np.full((1, len(reruns)), len(reruns)))

    def most(self, operation: int, moments: NDArray[np.int64], windows: NDArray[np.int64]) -> Floats:
        """How far it runs again after each of the moments. windows: the row of each."""
        after = self.runs[windows + 1, operation]
        here = self.runs[windows, operation] - after
        return np.minimum(after + here * (moments < self.when[windows, operation]), 1.0)


def in_windows(facts: Facts, reruns: Floats, starts: list[int], within: list[Floats]) -> Later:
    """within: per window, how often each operation runs again in it. Where: as early as another run in the
    window needs what it makes, else at its end."""
    count = len(reruns)
    when = np.full((len(starts) + 1, count), count)
    for row, (start, runs) in enumerate(zip(starts, within, strict=True), 1):
        end = starts[row] if row < len(starts) else count
        rerun: list[int] = np.flatnonzero(runs > 0.5)[::-1].tolist()
        for operation in rerun:
            uses = [use for x in facts.outputs[operation] for use in facts.uses[x]]
            times = [use if start < use else int(when[row, use]) for use in uses]
            when[row, operation] = min([end, *times])
    later = np.array([*within, np.zeros(count)])[::-1].cumsum(axis=0)[::-1]
    return Later(np.array(starts, np.int64), np.array([reruns, *later]), when)


def bytes_at(facts: Facts, later: Later, moments: NDArray[np.int64]) -> Floats:
    """Device bytes at each moment (operations, increasing)."""
    windows = np.searchsorted(later.starts, moments, side="right")
    count = len(facts.outputs)
    total = np.array([facts.least_bytes(t) for t in moments.tolist()], np.float64)
    recomputed: list[Floats | None] = [None] * count
    for p in range(count - 1, -1, -1):
        first = int(np.searchsorted(moments, p))
        most = later.most(p, moments[first:], windows[first:])
        if p in facts.ended_by:
            most[moments[first:] >= min(facts.ended_by[p], default=count)] = 0.0
        runs = np.zeros(len(most))
        for x in facts.outputs[p]:
            need = _need(facts, x, recomputed, moments, first)
            kept = np.maximum(need - most, 0.0)
            total[first:] += facts.sizes[x] / len(facts.producers[x]) * kept
            np.maximum(runs, need - kept, out=runs)
        recomputed[p] = runs
    return total


def _need(
    facts: Facts, x: int, recomputed: list[Floats | None], moments: NDArray[np.int64], first: int
) -> Floats:
    """Of tensor x, at the moments from number `first` on; 0 where its operation touches x."""
    uses, end = facts.uses[x], len(moments)
    need = np.zeros(end - first)
    for use in uses:
        runs = recomputed[use]
        assert runs is not None
        tail = need[len(need) - len(runs) :]
        np.maximum(tail, runs, out=tail)
    last = len(facts.outputs) if x in facts.results else max(uses, default=-1)
    need[: max(0, int(np.searchsorted(moments, last)) - first)] = 1.0
    for touching in (*uses, *facts.producers[x]):
        place = int(np.searchsorted(moments, touching))
        if first <= place < end and moments[place] == touching:
            need[place - first] = 0.0
    return need


def largest(excess: Floats, most: int) -> list[int]:
    """Up to `most` indices of positive entries, the largest first, no two close to each other."""
    apart = len(excess) // (4 * most)
    chosen: list[int] = []
    for index in np.argsort(-excess, kind="stable").tolist():
        if len(chosen) == most or excess[index] <= 0:
            break
        if all(abs(index - other) > apart for other in chosen):
            chosen.append(index)
    return chosen


def candidates(facts: Facts, limit: int, most: int) -> NDArray[np.int64]:
    """Moments at which the plain schedule does not fit, evenly thinned out to at most `most`."""
    count = len(facts.outputs)
    moments = np.arange(count)
    step = max(1, count // (2 * most))
    moments = moments[::step]
    over = moments[bytes_at(facts, Later.of(np.zeros(count)), moments) > limit]
    return over[np.unique(np.linspace(0, max(0, len(over) - 1), min(most, len(over))).astype(int))]
