"""The lower bounds that a solution carries: what no schedule within the budget can be faster than.

Cheap first: the time of all operations holds always. The residency bounds (residency.py) are computed where
a schedule takes longer than that and none can move tensors, once for each graph and limit in a process.
"""

from __future__ import annotations

from time import monotonic
from weakref import WeakKeyDictionary

from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine
from ..planner.bounds import time_bound
from .chains import device_limit
from .problem import Bound, OrderName, Problem
from .residency import Residency, free_order_bound, residency_bound

PROVEN = 1e-6
"""The relative gap up to which a schedule counts as the fastest."""

_known: WeakKeyDictionary[Graph, dict[tuple[int, OrderName], tuple[float, Residency]]] = WeakKeyDictionary()


def lower_bounds(problem: Problem, time: float, seconds: float) -> list[Bound]:
    """For a problem with a schedule of `time` seconds. seconds: the most to spend.

    The largest for any order first, then one for the file's order if it is larger. Ctrl-C ends the search.
    """
    graph = problem.graph
    trivial = Bound(time_bound(graph), "time of all operations", "any")
    if seconds <= 0.0 or time <= trivial.seconds * (1.0 + PROVEN) or not stays_on_device(problem):
        return [trivial]
    start = monotonic()
    free = _residency(problem, "any", seconds / 2)
    fixed = free if free.interrupted else _residency(problem, "file", seconds - (monotonic() - start))
    best = max(trivial, free.bound, key=lambda bound: bound.seconds)
    return [best, *([fixed.bound] if fixed.bound.seconds > best.seconds * (1.0 + PROVEN) else [])]


def stays_on_device(problem: Problem) -> bool:
    """No schedule can use other memory: the machine has no links, and no operation a way to use the host."""
    machine = problem.machine or problem.graph.machine or Machine()
    ways = (mode for modes in problem.graph.operations.modes.values() for mode in modes)
    return machine.links == Links() and not any(mode.on_host or mode.reads_host for mode in ways)


def _residency(problem: Problem, order: OrderName, seconds: float) -> Residency:
    """From an earlier call, unless that was cut short and there is more time now."""
    known = _known.setdefault(problem.graph, {})
    limit = device_limit(problem)
    spent, found = known.get((limit, order), (0.0, None))
    if found is None or (not found.finished and seconds > spent):
        search = free_order_bound if order == "any" else residency_bound
        found = search(problem.graph, limit, seconds)
        known[limit, order] = (seconds, found)
    return found
