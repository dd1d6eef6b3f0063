"""The period of a cycle of runs and transfers, by the simulator's rules, in compiled code.

An order is the turn's list as numbers: a run, then `runs + v` for the copy of version v to the host, then
`runs + versions + a` for the fetch that ends absence a. Deletes follow from it: a weight leaves after the
last use before its absence, and not before its copy to the host is on its way; a fetch or a run that finds
no room waits for the oldest of those copies (planner/walk.py). The simulator has the last word on what is
built from an order; this says the same some hundred times faster. Linear in the order and the turns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..graphs.compiled import compiled
from .weight_offload_cycle import FROZEN, Cycle

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TURNS = 40
"""The most turns that are played; then the growth is the mean of the last half."""

REFUSED = np.inf
"""The period of an order that breaks a rule or the limit."""


class Facts(NamedTuple):
    """A `Cycle` as arrays; `first`, `leaving`: per run, its absences' numbers in one flat row."""

    limit: int
    idle: int
    seconds: Floats
    need: Ints
    rest: Ints
    size: Ints
    up: Floats
    down: Floats
    changed: Ints
    changed_at: Ints
    weight: Ints
    after: Ints
    before: Ints
    version: Ints
    first: Ints
    leaving: Ints
    first_back: Ints
    coming: Ints
    first_new: Ints
    new: Ints


def facts_of(cycle: Cycle) -> Facts:
    absences = np.array(cycle.absences, np.int64).reshape(-1, 4)
    changed = np.array(cycle.changed_by, np.int64).reshape(-1, 2)
    weight, after, before, version = (np.ascontiguousarray(column) for column in absences.T)
    return Facts(
        cycle.limit,
        cycle.idle,
        np.array(cycle.seconds, np.float64),
        np.array(cycle.need, np.int64),
        np.array(cycle.rest, np.int64),
        np.array(cycle.sizes, np.int64),
        np.array(cycle.up, np.float64),
        np.array(cycle.down, np.float64),
        changed[:, 0].copy(),
        changed[:, 1].copy(),
        weight,
        after,
        before,
        version,
        *_rows(after, cycle.runs),
        *_rows(before, cycle.runs),
        *_rows(changed[:, 1], cycle.runs),
    )


def _rows(run: Ints, runs: int) -> tuple[Ints, Ints]:
    """The entries of each run, run after run, and where each run's begin."""
    first = np.zeros(runs + 1, np.int64)
    first[1:] = np.cumsum(np.bincount(run, minlength=runs))
    return first, np.argsort(run, kind="stable").astype(np.int64)


class Turn(NamedTuple):
    """What stands where while the cycle is played: per weight, per absence, per memory byte still to go."""

    here: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    waiting: Ints
    away_in: Ints
    stored_end: Floats
    in_flight: NDArray[np.bool_]
    fetch_end: Floats
    chosen: NDArray[np.bool_]
    pending_size: Ints
    pending_end: Floats
    pending_turn: Ints


def scratch(facts: Facts) -> Turn:
    weights, absences = len(facts.size), len(facts.weight)
    room = 4 * (len(facts.changed) + 2) * 4
    return Turn(
        np.ones(weights, np.bool_),
        np.zeros(weights, np.bool_),
        np.full(weights, -1, np.int64),
        np.full(weights, -1, np.int64),
        np.zeros(weights, np.float64),
        np.zeros(weights, np.bool_),
        np.zeros(absences, np.float64),
        np.zeros(absences, np.bool_),
        np.zeros(room, np.int64),
        np.zeros(room, np.float64),
        np.zeros(room, np.int64),
    )


@compiled
def settle(facts: Facts, order: Ints, turn: Turn) -> bool:
    """Set `turn` to where everything stands when a turn begins; false where the order breaks a rule."""
    runs, versions = len(facts.seconds), len(facts.changed)
    here, fresh, waiting, chosen = turn.here, turn.fresh, turn.waiting, turn.chosen
    away_in = turn.away_in
    here[:] = True
    fresh[:] = False
    waiting[:] = -1
    chosen[:] = False
    frozen = runs + versions
    for token in order:
        if token >= frozen:
            absence = token - frozen
            if chosen[absence]:
                return False
            chosen[absence] = True
            if facts.version[absence] == FROZEN:
                fresh[facts.weight[absence]] = True
    for attempt in range(2):
        for token in order:
            if token < runs:
                for row in range(facts.first_back[token], facts.first_back[token + 1]):
                    absence = facts.coming[row]
                    w = facts.weight[absence]
                    if attempt and chosen[absence] and (waiting[w] >= 0 or not here[w]):
                        return False
                for row in range(facts.first_new[token], facts.first_new[token + 1]):
                    fresh[facts.changed[facts.new[row]]] = False
                for row in range(facts.first[token], facts.first[token + 1]):
                    absence = facts.leaving[row]
                    w = facts.weight[absence]
                    if chosen[absence]:
                        if fresh[w]:
                            here[w], away_in[w] = False, absence
                        else:
                            waiting[w] = absence
            elif token < frozen:
                w = facts.changed[token - runs]
                if attempt and (fresh[w] or not here[w]):
                    return False
                fresh[w] = True
                if waiting[w] >= 0:
                    here[w], away_in[w], waiting[w] = False, waiting[w], -1
            else:
                w = facts.weight[token - frozen]
                if attempt and (here[w] or not fresh[w] or away_in[w] != token - frozen):
                    return False
                here[w], waiting[w] = True, -1
    return True


@compiled
def period(facts: Facts, order: Ints, turn: Turn) -> float:
    """Seconds of one turn in the steady state, REFUSED where the order breaks a rule or the limit."""
    if not settle(facts, order, turn):
        return REFUSED
    runs, frozen = len(facts.seconds), len(facts.seconds) + len(facts.changed)
    limit, size = facts.limit, facts.size
    here, fresh, waiting, chosen = turn.here, turn.fresh, turn.waiting, turn.chosen
    stored_end, in_flight, fetch_end = turn.stored_end, turn.in_flight, turn.fetch_end
    pending_size, pending_end, pending_turn = turn.pending_size, turn.pending_end, turn.pending_turn
    room = len(pending_size)
    stored_end[:] = 0.0
    in_flight[:] = False
    fetch_end[:] = 0.0
    used = 0
    for w in range(len(size)):
        if here[w]:
            used += size[w]
    oldest = newest = 0
    free = np.zeros(3)
    history = np.zeros((TURNS + 1, 3))
    used_before = count_before = -1
    for number in range(TURNS):
        fence = max(history[number - 1, 1], history[number - 1, 2]) if number > 1 else 0.0
        while oldest < newest and pending_turn[oldest % room] < number - 1:
            used -= pending_size[oldest % room]
            oldest += 1
        base = facts.idle
        for token in order:
            if token < runs:
                start = max(free[0], fence)
                for row in range(facts.first_back[token], facts.first_back[token + 1]):
                    absence = facts.coming[row]
                    if chosen[absence]:
                        start = max(start, fetch_end[absence])
                while used + facts.need[token] > limit:
                    if oldest == newest:
                        return REFUSED
                    used -= pending_size[oldest % room]
                    start = max(start, pending_end[oldest % room])
                    oldest += 1
                free[0] = start + facts.seconds[token]
                base = facts.rest[token]
                for row in range(facts.first_new[token], facts.first_new[token + 1]):
                    fresh[facts.changed[facts.new[row]]] = False
                for row in range(facts.first[token], facts.first[token + 1]):
                    absence = facts.leaving[row]
                    w = facts.weight[absence]
                    if not chosen[absence]:
                        continue
                    if not fresh[w]:
                        waiting[w] = absence
                        continue
                    here[w] = False
                    if in_flight[w]:
                        pending_size[newest % room] = size[w]
                        pending_end[newest % room] = stored_end[w]
                        pending_turn[newest % room] = number
                        newest += 1
                        in_flight[w] = False
                    else:
                        used -= size[w]
            elif token < frozen:
                w = facts.changed[token - runs]
                start = max(free[0], free[1], fence)
                free[1] = stored_end[w] = start + facts.up[w]
                fresh[w] = True
                if waiting[w] >= 0:
                    waiting[w], here[w] = -1, False
                    pending_size[newest % room] = size[w]
                    pending_end[newest % room] = stored_end[w]
                    pending_turn[newest % room] = number
                    newest += 1
                else:
                    in_flight[w] = True
            else:
                absence = token - frozen
                w = facts.weight[absence]
                start = max(free[0], free[2], fence, stored_end[w])
                while used + base + size[w] > limit:
                    if oldest == newest:
                        return REFUSED
                    used -= pending_size[oldest % room]
                    start = max(start, pending_end[oldest % room])
                    oldest += 1
                used += size[w]
                here[w] = True
                free[2] = fetch_end[absence] = start + facts.down[w]
        history[number + 1] = free
        steady = used == used_before and newest - oldest == count_before and number > 1
        used_before, count_before = used, newest - oldest
        if steady:
            for queue in range(3):
                now = history[number + 1, queue] - history[number, queue]
                then = history[number, queue] - history[number - 1, queue]
                if abs(now - then) > 1e-9 * (history[number + 1, 0] - history[number, 0]):
                    steady = False
            if steady:
                return np.max(history[number + 1] - history[number])
    half = TURNS // 2
    return np.max(history[TURNS] - history[half]) / (TURNS - half)
