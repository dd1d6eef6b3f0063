"""The period of a cycle of runs and transfers, by the simulator's rules, in compiled code.

An order is the iteration's list as numbers: a run, then `runs + v` for the copy of version v to the host,
then `runs + versions + a` for the fetch that ends interval a. Deletes follow from it: a weight leaves after
the last use before its interval, and not before its copy to the host is on its way; a fetch or a run that
finds no room waits for the oldest of those copies (planner/simulator/walk.py). Here is what waits for what,
when planner/replay/clock.py plays it. The simulator has the last word on what is built from an order. Linear
in the order and the iterations.

The walk is not planner/replay/walk.py: if only weights move, over two links, the state after an iteration is
three numbers, and a row waits for one copy of each link at most. Written as steps for planner/replay, an
order takes 3 to 5 times as long (benchmarks/results/solvers.md).
"""

from __future__ import annotations

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled, inner
from ....planner.replay.clock import MAX_ITERATIONS
from ....planner.replay.clock import period as played
from ....planner.replay.rows import LAUNCH, QUEUE, RUN, TURN
from ....planner.simulator.clock import Queue
from .cycle import FROZEN
from .facts import Facts, Scratch

REFUSED = np.inf
"""The period of an order that breaks a rule or the limit."""

_COMPUTE, _D2H, _H2D = int(Queue.COMPUTE), int(Queue.D2H), int(Queue.H2D)
_WALKS = 17


@compiled
def period(facts: Facts, order: Ints, scratch: Scratch) -> float:
    """Return the seconds of one iteration in the steady state.

    REFUSED if the order breaks a rule or the limit.
    """
    if not _begin(facts, order, scratch) or not _walk(facts, order, scratch):
        return REFUSED
    return played(scratch.iteration, MAX_ITERATIONS)


@inner
def _begin(facts: Facts, order: Ints, scratch: Scratch) -> bool:
    """Set `scratch` to the state when an iteration ends; return false if an interval is chosen twice."""
    runs, versions = len(facts.seconds), len(facts.changed)
    here, fresh, waiting, chosen = scratch.here, scratch.fresh, scratch.waiting, scratch.chosen
    away_in = scratch.away_in
    here[:] = True
    fresh[:] = False
    waiting[:] = -1
    chosen[:] = False
    frozen = runs + versions
    for token in order:
        if token >= frozen:
            interval = token - frozen
            if chosen[interval]:
                return False
            chosen[interval] = True
            # Nothing changes it: its copy on the host is there from the start, and stays.
            if facts.version[interval] == FROZEN:
                fresh[facts.weight[interval]] = True
    for token in order:
        if token < runs:
            for place in range(facts.first_new[token], facts.first_new[token + 1]):
                fresh[facts.changed[facts.new[place]]] = False
            for place in range(facts.first[token], facts.first[token + 1]):
                interval = facts.leaving[place]
                w = facts.weight[interval]
                if chosen[interval]:
                    if fresh[w]:
                        here[w], away_in[w] = False, interval
                    else:
                        waiting[w] = interval
        elif token < frozen:
            w = facts.changed[token - runs]
            fresh[w] = True
            if waiting[w] >= 0:
                here[w], away_in[w], waiting[w] = False, waiting[w], -1
        else:
            w = facts.weight[token - frozen]
            here[w], waiting[w] = True, -1
    return True


@inner
def _walk(facts: Facts, order: Ints, scratch: Scratch) -> bool:
    """Find which entry of the order waits for which, in the steady state.

    Returns False if an entry breaks a rule, or does not fit.
    """
    runs, frozen = len(facts.seconds), len(facts.seconds) + len(facts.changed)
    limit, size, iteration = facts.limit, facts.size, scratch.iteration
    here, fresh, waiting, chosen = scratch.here, scratch.fresh, scratch.waiting, scratch.chosen
    away_in = scratch.away_in
    stored, in_flight, fetched = scratch.stored, scratch.in_flight, scratch.fetched
    pending_size, pending_copy = scratch.pending_size, scratch.pending_copy
    count = len(order)
    iteration.counts[0] = count
    stored[:] = -1
    in_flight[:] = False
    fetched[:] = -1
    used = 0
    for w in range(len(size)):
        if here[w]:
            used += size[w]
    rest, rest_copy = 0, -1
    oldest = newest = 0
    # Of the state only what the waits depend on: bytes in use, pending deletes, and what a claim has left.
    before = used, 0, 0
    for number in range(_WALKS):
        begin = number * count
        # Copies of iterations before the previous one have landed: the fence of planner/simulator/clock.py.
        while oldest < newest and pending_copy[oldest] < begin - count:
            used -= pending_size[oldest]
            oldest += 1
        for place in range(oldest, newest):
            pending_size[place - oldest], pending_copy[place - oldest] = (
                pending_size[place],
                pending_copy[place],
            )
        oldest, newest = 0, newest - oldest
        if rest_copy < begin - count:
            rest = 0
        base, waits, past = facts.idle, 0, max(0, begin - count)
        for row in range(count):
            token = order[row]
            up = down = -1
            if token < runs:
                iteration.rows[row, QUEUE] = iteration.rows[row, TURN] = _COMPUTE
                iteration.seconds[row, RUN] = facts.seconds[token, RUN]
                iteration.seconds[row, LAUNCH] = facts.seconds[token, LAUNCH]
                for place in range(facts.first_back[token], facts.first_back[token + 1]):
                    interval = facts.coming[place]
                    if chosen[interval]:
                        w = facts.weight[interval]
                        if waiting[w] >= 0 or not here[w]:
                            return False
                        down = max(down, fetched[interval])
                # `rest` is what is left of a delete that an earlier fetch claimed in part: still that copy's
                # to wait for.
                if rest > 0 and used + rest + facts.need[token] > limit:
                    up, rest = max(up, rest_copy), 0
                while used + facts.need[token] > limit:
                    if oldest == newest:
                        return False
                    used -= pending_size[oldest]
                    up = max(up, pending_copy[oldest])
                    oldest += 1
                base = facts.rest[token]
                for place in range(facts.first_new[token], facts.first_new[token + 1]):
                    w = facts.changed[facts.new[place]]
                    # It changes the weight, which a copy to the host still reads.
                    up = max(up, stored[w])
                    fresh[w] = False
                for place in range(facts.first[token], facts.first[token + 1]):
                    interval = facts.leaving[place]
                    w = facts.weight[interval]
                    if not chosen[interval]:
                        continue
                    if not fresh[w]:
                        waiting[w] = interval
                        continue
                    here[w], away_in[w] = False, interval
                    # The source of a copy under way: its bytes are free when the copy has landed.
                    if in_flight[w]:
                        pending_size[newest], pending_copy[newest] = size[w], stored[w]
                        newest += 1
                        in_flight[w] = False
                    else:
                        used -= size[w]
            elif token < frozen:
                w = facts.changed[token - runs]
                if fresh[w] or not here[w]:
                    return False
                iteration.rows[row, QUEUE] = iteration.rows[row, TURN] = _D2H
                iteration.seconds[row, RUN], iteration.seconds[row, LAUNCH] = facts.offload_seconds[w], 0.0
                stored[w] = begin + row
                fresh[w] = True
                if waiting[w] >= 0:
                    here[w], away_in[w], waiting[w] = False, waiting[w], -1
                    pending_size[newest], pending_copy[newest] = size[w], stored[w]
                    newest += 1
                else:
                    in_flight[w] = True
            else:
                interval = token - frozen
                w = facts.weight[interval]
                # Fetches of intervals of one weight may not change places: each ends the interval in which
                # the weight is offloaded.
                if here[w] or not fresh[w] or away_in[w] != interval:
                    return False
                iteration.rows[row, QUEUE] = iteration.rows[row, TURN] = _H2D
                iteration.seconds[row, RUN], iteration.seconds[row, LAUNCH] = facts.prefetch_seconds[w], 0.0
                up = max(up, stored[w])
                missing = used + base + size[w] + rest - limit
                if rest > 0 and missing > 0:
                    up = max(up, rest_copy)
                    taken = min(rest, missing)
                    rest, missing = rest - taken, missing - taken
                while missing > 0:
                    if oldest == newest:
                        return False
                    used -= pending_size[oldest]
                    missing -= pending_size[oldest]
                    up = max(up, pending_copy[oldest])
                    if missing < 0:
                        rest, rest_copy = -missing, pending_copy[oldest]
                    oldest += 1
                used += size[w]
                here[w] = True
                fetched[interval] = begin + row
            iteration.first[row] = waits
            # Older ones ended before this iteration began (the fence), and waits are relative to it.
            if up >= past:
                iteration.waits[waits] = up - begin
                waits += 1
            if down >= past:
                iteration.waits[waits] = down - begin
                waits += 1
        iteration.first[count] = waits
        # The second iteration on: the first starts without copies under way, which a steady state has.
        if number > 0 and (used, newest - oldest, rest) == before:
            break
        before = used, newest - oldest, rest
    return True
