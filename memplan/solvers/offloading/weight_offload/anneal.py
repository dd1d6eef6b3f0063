"""Local search over orders of runs and transfers, on the period that the simulator's rules give.

Four moves: a transfer moves; two transfers of a kind are exchanged; an offload interval begins or ends to
be chosen; one interval is chosen instead of another. Accepted by simulated annealing (annealing.py). Each
move costs one replay, linear in the order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled, inner
from ...annealing import acceptance, temperature_at
from ..cycles.cycle import FROZEN
from ..cycles.facts import Facts, Scratch
from ..cycles.replay import period


class Orders(NamedTuple):
    """The current order of the search, and the best: of each the first `length` entries.

    seconds: the best's.
    """

    now: Ints
    now_length: Ints
    best: Ints
    best_length: Ints
    seconds: NDArray[np.float64]


def orders_from(facts: Facts, order: Ints, seconds: float) -> Orders:
    """Return arrays in which both orders are this one, with room for every run, copy and offload interval."""
    room = np.zeros(len(facts.seconds) + len(facts.changed) + len(facts.weight) + 2, np.int64)
    room[: len(order)] = order
    length = np.full(1, len(order))
    return Orders(room, length, room.copy(), length.copy(), np.full(1, seconds))


@compiled
def anneal(
    facts: Facts, orders: Orders, scratch: Scratch, moves: int, hot: float, cold: float, host_limit: int
) -> None:
    """Try `moves` moves while the temperature falls from `hot` to `cold` seconds. `orders` is changed."""
    order = orders.now[: orders.now_length[0]].copy()
    now = period(facts, order, scratch)
    best = orders.seconds[0]
    for step in range(moves):
        after = neighbour(facts, order, host_limit)
        if len(after) == 0:
            continue
        then = period(facts, after, scratch)
        temperature = temperature_at(step / moves, hot, cold)
        if then <= now or np.random.random() < acceptance(then - now, temperature):
            order, now = after, then
            # Rounding errors would count as gains, and each copies the order.
            if now < best - 1e-12:
                best = now
                orders.best_length[0] = _put(orders.best, order)
    orders.seconds[0] = best
    orders.now_length[0] = _put(orders.now, order)


@inner
def _put(room: Ints, order: Ints) -> int:
    """Write an order to the beginning of an array, and return its length.

    A loop, since an assignment of slices takes seconds to compile.
    """
    for place in range(len(order)):
        room[place] = order[place]
    return len(order)


@compiled
def neighbour(facts: Facts, order: Ints, host_limit: int) -> Ints:
    """Return an order that is one move from this one; empty if the move cannot be made."""
    runs, frozen = len(facts.seconds), len(facts.seconds) + len(facts.changed)
    length, kind = len(order), np.random.random()
    # randint(0) raises.
    if kind < 0.2 and len(facts.weight) == 0:
        return order[:0]
    if kind < 0.2:
        return toggled(facts, order, np.random.randint(len(facts.weight)), host_limit)
    if length == runs:
        return order[:0]
    at = np.random.randint(length)
    # Runs keep their order; only copies move. Some entry is a copy, or `length` were `runs`.
    while order[at] < runs:
        at = np.random.randint(length)
    if kind < 0.3 and order[at] >= frozen:
        without = toggled(facts, order, order[at] - frozen, host_limit)
        return toggled(facts, without, np.random.randint(len(facts.weight)), host_limit)
    if kind < 0.5:
        other = np.random.randint(length)
        while order[other] < runs:
            other = np.random.randint(length)
        if other == at or (order[at] < frozen) != (order[other] < frozen):
            return order[:0]
        after = order.copy()
        after[at], after[other] = order[other], order[at]
        return after
    # Every length as likely on a logarithmic scale: most moves are short, some cross the iteration.
    reach = int(np.exp(np.random.random() * np.log(length)))
    step = reach if np.random.random() < 0.5 else -reach
    return moved(order, at, (at + step) % length)


@inner
def moved(order: Ints, at: int, to: int) -> Ints:
    """Return the order with the entry at `at` moved to `to`."""
    after = order.copy()
    for place in range(at, to):
        after[place] = order[place + 1]
    for place in range(to, at):
        after[place + 1] = order[place]
    after[to] = order[at]
    return after


@inner
def toggled(facts: Facts, order: Ints, interval: int, host_limit: int) -> Ints:
    """Return the order with an interval added, its fetch at a random place before its use; or removed.

    Empty if the host has no room for one more weight.
    """
    runs, frozen = len(facts.seconds), len(facts.seconds) + len(facts.changed)
    version, token = facts.version[interval], frozen + interval
    chosen = stored = False
    siblings = 0
    host = facts.size[facts.weight[interval]]
    seen = np.zeros(len(facts.size), np.bool_)
    for entry in order:
        if entry == token:
            chosen = True
        elif entry >= frozen:
            # FROZEN equals FROZEN too; `stored` leaves those out.
            siblings += facts.version[entry - frozen] == version
            w = facts.weight[entry - frozen]
            if not seen[w]:
                seen[w] = True
                host += facts.size[w] * (w != facts.weight[interval])
    # The copy to the host is shared: the first interval of a version brings it into the list, the last takes
    # it out.
    stored = version != FROZEN and siblings > 0
    after = np.empty(len(order) + 2, np.int64)
    length = 0
    if chosen:
        for entry in order:
            if entry != token and (stored or version == FROZEN or entry != runs + version):
                after[length] = entry
                length += 1
        return after[:length]
    if host > host_limit:
        return order[:0]
    # As above: near its use rather than far, never before the weight has left.
    span = (facts.before[interval] - facts.after[interval] - 1) % runs
    distance = int(np.exp(np.random.random() * np.log(span + 1))) - 1
    fetch_at = (facts.before[interval] - distance) % runs
    for entry in order:
        if entry == fetch_at:
            after[length] = token
            length += 1
        after[length] = entry
        length += 1
        if version != FROZEN and not stored and entry == facts.changed_at[version]:
            after[length] = runs + version
            length += 1
    return after[:length]
