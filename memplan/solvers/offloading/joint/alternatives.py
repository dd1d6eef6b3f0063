"""Alternative positions of collectives, so that they overlap with computations.

    one queue     F1  gather w2  F2  …  B2  scatter g2  update w2  B1
    alternatives  gather w2  F1  F2  …  B2  scatter g2  B1  update w2

A collective may run earlier, where the computations up to its first use take as long as it and those that
follow it on the network; an update that reads a collective's result later, when that has ended, with the
others of its weight: row blocks keep their order. Both are runs that are ABSENT at first. Of a run and its
alternatives one takes place, or none. The other position of an update that may run on the CPU
(update_order.py) is in no group. Linear in the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np

from ....planner.schedule.sequence import Run
from .drops import Drops
from .start import host_modes, together
from .state import State
from .timeline import ABSENT, compute_seconds
from .update_order import other_slots

Together = tuple[int, ...]
"""Positions of runs that change their places together: one of a collective, those of a weight's updates."""

LOOK_AHEADS = (1.0, 2.0, 4.0)
"""Factors on a collective's duration: so long it is issued ahead, or an update waits for it."""


class Alternatives(NamedTuple):
    """Runs with their alternatives among them.

    runs: the given ones, and ABSENT ones. inside: positions of the given ones there. groups: positions of
    runs and of their alternatives, by look-ahead.
    """

    runs: list[Run]
    inside: list[int]
    groups: list[list[Together]]


def with_alternatives(drops: Drops, runs: Sequence[Run]) -> Alternatives:
    """Add the alternatives of all collectives, and of all updates that read the result of one."""
    slots: list[dict[int, None]] = [{} for _ in range(len(runs) + 1)]
    moves: dict[Together, list[int]] = {}
    if drops.graph.operations.comm:
        for positions, slot in (*_earlier(drops, runs), *_later(drops, runs)):
            if slot not in moves.setdefault(positions, []):
                moves[positions].append(slot)
                slots[slot].update(dict.fromkeys(positions))
    for position, slot in other_slots(drops, runs, together(drops.graph, host_modes(drops.graph))):
        slots[slot][position] = None
    made, inside, at = list[Run](), list[int](), dict[tuple[int, int], int]()
    for slot, wanted in enumerate(slots):
        for position in wanted:
            # Alternatives stand before the run of their slot.
            at[position, slot] = len(made)
            made.append((runs[position][0], ABSENT))
        if slot < len(runs):
            inside.append(len(made))
            made.append(runs[slot])
    groups = [
        [tuple(inside[p] for p in positions), *(tuple(at[p, slot] for p in positions) for slot in found)]
        for positions, found in moves.items()
    ]
    return Alternatives(made, inside, groups)


def _earlier(drops: Drops, runs: Sequence[Run]) -> Iterator[tuple[Together, int]]:
    """Yield pairs (positions, slot) of collectives: the network serves its queue backwards in time."""
    operations, first = drops.graph.operations, _first_slots(drops, runs)
    starts = np.array(_starts(drops, runs))
    for look_ahead in LOOK_AHEADS:
        due = inf
        for position in range(len(runs) - 1, -1, -1):
            operation, mode = runs[position]
            if operation not in operations.comm:
                continue
            # It is to end where it stands now, or when the collective after it has to begin.
            begin = min(due, starts[position]) - look_ahead * float(operations.time[operation])
            slot = max(first[position], int(np.searchsorted(starts, begin, "right")) - 1)
            if slot < position:
                yield (position,), slot
            if mode != ABSENT:
                due = max(begin, float(starts[slot]))


def _later(drops: Drops, runs: Sequence[Run]) -> Iterator[tuple[Together, int]]:
    """Yield pairs (positions, slot) of a weight's updates that wait for a collective if it is issued where
    it is."""
    graph = drops.graph
    operations, starts = graph.operations, _starts(drops, runs)
    network, ends = 0.0, dict[int, float]()
    at = {o: position for position, (o, _mode) in enumerate(runs) if o in drops.movable}
    groups = together(graph, sorted(at))
    of_weight = {group[0]: tuple(sorted(at[o] for o in group)) for group in groups}
    for position, (operation, mode) in enumerate(runs):
        if operation in operations.comm:
            if mode != ABSENT:
                network = max(network, starts[position]) + float(operations.time[operation])
                ends.update(dict.fromkeys(operations.writes[operation].tolist(), network))
        elif operation in of_weight:
            positions = of_weight[operation]
            ready = max((ends[x] for x in graph.read_lists[operation] if x in ends), default=0.0)
            for look_ahead in LOOK_AHEADS:
                # Seconds from the present place to where the collective has ended, stretched.
                late = starts[position] + look_ahead * (ready - starts[position])
                slot = min(int(np.searchsorted(starts, late)), len(runs))
                # The slot after the last is the same place.
                if slot > positions[-1] + 1:
                    yield positions, slot


def _first_slots(drops: Drops, runs: Sequence[Run]) -> list[int]:
    """Return per run the first slot in which what it reads is there, and no run needs its results' last
    copy."""
    graph, found = drops.graph, list[int]()
    changed, touched = [0] * len(graph.tensors), [0] * len(graph.tensors)
    for position, (operation, mode) in enumerate(runs):
        made: list[int] = graph.operations.writes[operation].tolist()
        read, mutated = graph.read_lists[operation], graph.mutate_lists[operation]
        # After what it reads was made, and after the last use of what it overwrites.
        found.append(max((*(changed[x] for x in read), *(touched[x] for x in (*made, *mutated))), default=0))
        if mode != ABSENT:
            for x in (*made, *mutated):
                changed[x] = position + 1
            for x in (*made, *mutated, *read):
                touched[x] = position + 1
    return found


def _starts(drops: Drops, runs: Sequence[Run]) -> list[float]:
    """Return when each run would start if the device waited for nothing, and when the last would end."""
    return [*accumulate((compute_seconds(drops.graph, run) for run in runs), initial=0.0)]


def take_place(state: State, positions: Together, others: Together) -> None:
    """Let runs take place at other positions, with what is offloaded after them."""
    for position, other in zip(positions, others, strict=True):
        state.switch({other: state.runs[position][1], position: ABSENT})
        leaving = {x: to for (x, after), to in state.offloaded.items() if after == position}
        state.send_as({(x, other): to for x, to in leaving.items()})
