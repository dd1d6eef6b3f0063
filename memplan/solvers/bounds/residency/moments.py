"""Choice of a residency program's moments: those at which what is kept and recomputed does not fit yet.

Let most_{o,t} ≤ 1 say how far operation o is recomputed after t in some answer: reruns_o, or what its windows
have from t on. To recompute as much as that allows and keep the rest takes, at the moment t,

    need_{x,t} = 1 if x is used after t, else the largest recomputed_{c,t} of those that read x
    kept_{x,t} = max(0, need_{x,t} − most_{p,t}),  recomputed_{p,t} = min(need_{x,t}, most_{p,t})   p makes x

If that fits, the moment is not needed. For each moment it is a backward scan over the operations, compiled.
First runs are in traced order. For any order only what surely comes before and after the moment counts: an
operation that may run on either side needs nothing, and what it makes is not kept. The two differ by much: in
the backward pass of a tree most operations are open at most moments, and few at the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....graphs.adjacency import Indices
from ....graphs.arrays import Floats, Ints
from ....graphs.compiled import compiled
from ...problem import OrderName
from .facts import Edges, Facts
from .order import AFTER, BEFORE, OPEN, known_sides


@dataclass(frozen=True, eq=False)
class Later:
    """Numbers of recomputations of each operation, in all and after each window's start.

    starts: operations at whose moments windows begin, increasing.
    runs: shape (windows + 2, operations); row k: from window k − 1 on; row 0 in all, the last row nothing.
    when: shape (windows + 1, operations); row k: before which first run those of window k − 1 are.
    """

    starts: Ints
    runs: Floats
    when: Ints

    @staticmethod
    def of(reruns: Floats) -> Later:
        """Return the numbers of recomputations without windows."""
        runs = np.array([reruns, np.zeros(len(reruns))])
        return Later(np.zeros(0, np.int64), runs, np.full((1, len(reruns)), len(reruns)))

    def most(self, operation: int, moments: Ints, windows: Ints) -> Floats:
        """Return the share of the operation that is recomputed after each of the moments.

        windows: the window's row for each moment.
        """
        after = self.runs[windows + 1, operation]
        # What the moment's own window recomputes counts only if that comes after the moment (`when`).
        here = self.runs[windows, operation] - after
        return np.minimum(after + here * (moments < self.when[windows, operation]), 1.0)


def in_windows(facts: Facts, reruns: Floats, starts: list[int], within: list[Floats]) -> Later:
    """Place each window's recomputations just before a run in it that needs them, else at the window's end.

    reruns: per operation, how often it is recomputed in all.
    within: per window, how often each operation is recomputed in it.
    """
    count = len(reruns)
    when = np.full((len(starts) + 1, count), count)
    for row, (start, runs) in enumerate(zip(starts, within, strict=True), 1):
        end = starts[row] if row < len(starts) else count
        # Backwards: a run that is needed by another one of the window finds that one's place known.
        rerun: list[int] = np.flatnonzero(runs > 0.5)[::-1].tolist()
        for operation in rerun:
            uses = [use for x in facts.outputs[operation] for use in facts.uses[x]]
            # A use that first runs before the window needs it only when it is recomputed itself.
            times = [use if start < use else int(when[row, use]) for use in uses]
            when[row, operation] = min([end, *times])
    # Row k: what the windows from k - 1 on recompute, summed from the end.
    later = np.array([*within, np.zeros(count)])[::-1].cumsum(axis=0)[::-1]
    return Later(np.array(starts, np.int64), np.array([reruns, *later]), when)


def bytes_at(facts: Facts, later: Later, moments: Ints, order: OrderName = "file") -> Floats:
    """Return the device bytes at each moment (operations): all, or what is surely there in any order."""
    windows = np.searchsorted(later.starts, moments, side="right")
    kept, recomputed = np.zeros(len(moments)), np.empty(len(facts.once))
    side = np.empty(len(facts.once), np.uint8)
    # Without predecessors the sides are those of the traced order.
    before = facts.predecessors if order == "any" else None
    start, columns = (
        (before.start, before.columns) if before else (np.zeros(0, np.int64), np.zeros(0, np.int32))
    )
    edges = facts.edges
    _keep(edges, (start, columns), (later.runs, later.when), (moments, windows), (side, recomputed), kept)
    return kept + np.array([facts.least_bytes(t) for t in moments.tolist()], np.float64)


@compiled
def _keep(
    edges: Edges,
    predecessors: tuple[Ints, Indices],
    later: tuple[Floats, Ints],
    looked_at: tuple[Ints, Ints],
    scratch: tuple[NDArray[np.uint8], Floats],
    kept: Floats,
) -> None:
    """Add up the bytes that are kept at each moment, without those that its operation touches.

    predecessors: in compressed rows; none if first runs are in traced order.
    later: runs and when, of `Later`.
    looked_at: moments and their windows.
    scratch: arrays with an entry per operation.
    kept: takes the result, a number per moment.
    """
    start, before = predecessors
    runs, when = later
    moments, windows = looked_at
    side, recomputed = scratch
    for place in range(len(moments)):
        t, window = moments[place], windows[place]
        if len(start):
            side[:] = OPEN
            known_sides(start, before, t, side)
        else:
            side[: t + 1] = BEFORE
            side[t + 1 :] = AFTER
        # From last to first: readers before t come after p, so `recomputed` is known for them. In any order,
        # too, what surely comes before t does so in the traced order.
        for p in range(t, -1, -1):
            recomputed[p] = 0.0
            if side[p] != BEFORE:
                continue
            rest = runs[window + 1, p]
            here = runs[window, p] - rest if t < when[window, p] else 0.0
            most = min(rest + here, 1.0) if t < edges.ends[p] else 0.0
            for entry in range(edges.output_start[p], edges.output_start[p + 1]):
                x = edges.outputs[entry]
                # Needed by a later first run, whole; by a recomputed reader, as far as that is recomputed.
                need = 1.0 if edges.results[x] else 0.0
                touched = False
                for index in range(edges.use_start[x], edges.use_start[x + 1]):
                    reader = edges.uses[index]
                    touched |= reader == t
                    if side[reader] == AFTER:
                        need = 1.0
                    elif side[reader] == BEFORE:
                        need = max(need, recomputed[reader])
                first, last = edges.producer_start[x], edges.producer_start[x + 1]
                for index in range(first, last):
                    touched |= edges.producers[index] == t
                if not touched:
                    stays = max(need - most, 0.0)
                    # A sum has several producers: each is met once in the loop, and takes its part of the
                    # bytes.
                    kept[place] += edges.sizes[x] / (last - first) * stays
                    recomputed[p] = max(recomputed[p], need - stays)


def largest(excess: Floats, most: int) -> list[int]:
    """Return up to `most` indices of positive entries, the largest first, no two close to each other."""
    # Neighbouring moments have nearly the same rows: one of them is enough for a round.
    apart = len(excess) // (4 * max(1, most))
    chosen: list[int] = []
    for index in np.argsort(-excess, kind="stable").tolist():
        if len(chosen) == most or excess[index] <= 0:
            break
        if all(abs(index - other) > apart for other in chosen):
            chosen.append(index)
    return chosen


def candidates(facts: Facts, limit: int, most: int, order: OrderName = "file") -> Ints:
    """Return moments at which the baseline does not fit, thinned out to at most about `most`.

    For any order there are up to as many more at which even what is surely there does not fit: the fullest of
    each stretch, among them ends of phases, since at a loss all of forward has run in every order.
    """
    count = len(facts.once)
    none = Later.of(np.zeros(count))
    # Contiguous, unlike a slice, for which the scan would be compiled once more.
    moments = np.arange(0, count, max(1, count // (2 * most)))
    over = moments[bytes_at(facts, none, moments) > limit]
    evenly = over[np.unique(np.linspace(0, max(0, len(over) - 1), min(most, len(over))).astype(int))]
    if order == "file":
        return evenly
    ends = np.flatnonzero(np.diff(facts.graph.operations.phase))
    looked = np.unique(np.concatenate([over, ends, ends + 1]))
    sure = bytes_at(facts, none, looked, "any")
    stretches = np.array_split(np.flatnonzero(sure > limit), most)
    fullest = [looked[one[np.argmax(sure[one])]] for one in stretches if len(one)]
    return np.unique(np.concatenate([evenly, np.array(fullest, evenly.dtype)]))
