"""Lower bounds on the time of any schedule within a budget, by the residency program (residency_program.py).

`residency_bound` holds for schedules whose first runs keep the file's order; `free_order_bound` for all, with
any order, any recomputations, any deletes. Both hold only without transfers: on a machine with links, or
with modes that use the host, nothing but the time of all operations is claimed.

Moments are added where the solution at hand does not fit yet (residency_moments.py), a few a round, until
the bound stops rising or the time is up: every program on the way gives a bound, some ten moments give
nearly all of it. Bounds are computed from the rows' prices (linear.py), so no solver's tolerance is in them.
Each round costs O(edges) rows and columns for a moment, and an interior-point solve.

No reference: the program of Checkmate (Jain et al. 2020, arXiv:1910.02653) relaxed and cut down to single
moments, with recomputation carried from tensor to tensor; the bound for free order is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum, inf
from time import monotonic

import numpy as np

from ..graphs.graph import Graph
from .linear import relaxed
from .milp_model import Floats
from .problem import Bound, OrderName
from .residency_facts import Facts
from .residency_moments import bytes_at, candidates, largest
from .residency_order import Moment, any_order, file_order
from .residency_program import residency_program

NAME = "residency"

ALL_AT_ONCE = 40
"""Up to so many candidates, the first program has them all."""

MOST_CANDIDATES = 600
A_ROUND = 5
"""Moments added at a time."""

NEGLIGIBLE = 1e-4
"""An excess over the budget, as a part of it, that is not worth a moment."""

RISE = 1e-4
"""A round that raises the bound by less, as a part of the time of all operations, is the last but one."""


@dataclass(frozen=True, eq=False)
class Residency:
    """A bound with the fractional answer behind it.

    reruns: per operation, how far it runs again (d_o). moments: operations, at whose first runs memory was
    looked at. kept: for each moment, tensor -> how far it stays; those that its operation touches left out.
    finished: more time would not raise the bound. interrupted: Ctrl-C ended the search.
    """

    bound: Bound
    reruns: Floats
    moments: list[int]
    kept: list[dict[int, float]]
    finished: bool = False
    interrupted: bool = False


def residency_bound(graph: Graph, budget: int, time_limit: float | None = None) -> Residency:
    """For first runs in the file's order, on a device of `budget` bytes. ∞: there is no such schedule."""
    return _search(Facts(graph), budget, time_limit, "file")


def free_order_bound(graph: Graph, budget: int, time_limit: float | None = None) -> Residency:
    """For every order that the dependencies allow."""
    return _search(Facts(graph), budget, time_limit, "any")


def _search(facts: Facts, budget: int, time_limit: float | None, order: OrderName) -> Residency:
    deadline = inf if time_limit is None else monotonic() + time_limit
    count = len(facts.outputs)
    best = Residency(Bound(fsum(facts.seconds), NAME, order), np.zeros(count), [], [])
    if facts.floor > budget:
        return replace(best, bound=Bound(inf, NAME, order), finished=True)
    places = candidates(facts, budget, MOST_CANDIDATES)
    moment = file_order(facts.graph) if order == "file" else any_order(facts.predecessors)
    a_round = max(1, len(places)) if len(places) <= ALL_AT_ONCE else A_ROUND
    chosen: list[int] = []
    idle = 0
    while monotonic() < deadline and not best.interrupted:
        excess = bytes_at(facts, best.reruns, places) - budget * (1.0 + NEGLIGIBLE)
        excess[np.isin(places, chosen)] = 0.0
        more = places[largest(excess, a_round)].tolist()
        if not more or idle == 2 or best.bound.seconds == inf:
            return replace(best, finished=True)
        chosen = sorted([*chosen, *more])
        found = _solved(facts, budget, [moment(t) for t in chosen], best, deadline)
        rise = found.bound.seconds - best.bound.seconds
        idle = idle + 1 if rise < RISE * fsum(facts.seconds) else 0
        best = found
    return best


def _solved(
    facts: Facts, budget: int, moments: list[Moment], before: Residency, deadline: float
) -> Residency:
    """The best of the program's answer and the one before it."""
    part = residency_program(facts, budget, moments)
    answer = relaxed(part.program, None if deadline == inf else max(0.0, deadline - monotonic()))
    seconds = max(before.bound.seconds, fsum(facts.seconds) + answer.bound * part.seconds)
    bound = replace(before.bound, seconds=seconds)
    if answer.x is None:
        return replace(before, bound=bound, interrupted=answer.interrupted)
    x = np.clip(answer.x, 0.0, 1.0)
    reruns = np.zeros(len(facts.outputs))
    reruns[list(part.reruns)] = x[list(part.reruns.values())]
    kept = [{tensor: float(x[column]) for tensor, column in row.items()} for row in part.kept]
    return Residency(bound, reruns, [m.operation for m in moments], kept, answer.interrupted)
