"""The period of a cycle of runs and transfers, by the simulator's rules, in compiled code.

An order is the turn's list as numbers: a run, then `runs + v` for the copy of version v to the host, then
`runs + versions + a` for the fetch that ends absence a. Deletes follow from it: a weight leaves after the
last use before its absence, and not before its copy to the host is on its way; a fetch or a run that finds
no room waits for the oldest of those copies (planner/simulator/walk.py). The simulator has the last word on
what is built from an order; this says the same some hundred times faster. Linear in the order and the turns.
"""

from __future__ import annotations

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled
from .facts import Facts, Turn
from .residency import begin_turn

TURNS = 40
"""The most turns that are played; then the growth is the mean of the last half."""

REFUSED = np.inf
"""The period of an order that breaks a rule or the limit."""


@compiled
def period(facts: Facts, order: Ints, turn: Turn) -> float:
    """Seconds of one turn in the steady state, REFUSED where the order breaks a rule or the limit."""
    if not begin_turn(facts, order, turn):
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
    rest, rest_end = 0, 0.0
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
                if rest > 0 and used + rest + facts.need[token] > limit:
                    start, rest = max(start, rest_end), 0
                while used + facts.need[token] > limit:
                    if oldest == newest:
                        return REFUSED
                    used -= pending_size[oldest % room]
                    start = max(start, pending_end[oldest % room])
                    oldest += 1
                for row in range(facts.first_new[token], facts.first_new[token + 1]):
                    start = max(start, stored_end[facts.changed[facts.new[row]]])
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
                missing = used + base + size[w] + rest - limit
                if rest > 0 and missing > 0:
                    start = max(start, rest_end)
                    taken = min(rest, missing)
                    rest, missing = rest - taken, missing - taken
                while missing > 0:
                    if oldest == newest:
                        return REFUSED
                    used -= pending_size[oldest % room]
                    missing -= pending_size[oldest % room]
                    start = max(start, pending_end[oldest % room])
                    if missing < 0:
                        rest, rest_end = rest - missing, max(rest_end, pending_end[oldest % room])
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
