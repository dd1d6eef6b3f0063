"""The lower bounds that a solution carries: what no schedule within the budget can be faster than.

Cheap first: the time of all operations holds always. The residency bounds (residency.py) hold for schedules
without transfers: for all there are, where the machine has no links. They are computed once for each graph
and limit in a process, and not where an operation has a way to use the host, with links or without.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from weakref import WeakKeyDictionary

from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine
from ..planner.bounds import time_bound
from ..planner.schedule import Schedule, Verb
from .chains import device_limit
from .problem import Bound, OrderName, Problem
from .residency import Residency, free_order_bound, residency_bound

PROVEN = 1e-6
"""The relative gap up to which a schedule counts as the fastest."""

_known: WeakKeyDictionary[Graph, dict[tuple[int, OrderName], tuple[float, Residency]]] = WeakKeyDictionary()


def lower_bounds(problem: Problem, schedule: Schedule, time: float, seconds: float) -> list[Bound]:
    """For a problem with a schedule that takes `time` seconds. seconds: the most to spend. Ctrl-C ends it."""
    graph = problem.graph
    trivial = Bound(time_bound(graph), "time of all operations", "any")
    if seconds <= 0.0 or time <= trivial.seconds * (1.0 + PROVEN) or _leaves_device(graph, schedule):
        return [trivial]
    start = monotonic()
    fixed = _residency(problem, "file", seconds / 2, time, None)
    left = seconds - (monotonic() - start)
    free = None if fixed.interrupted else _residency(problem, "any", left, time, fixed)
    machine = problem.machine or graph.machine or Machine()
    found = [residency.bound for residency in (free, fixed) if residency]
    return [trivial, *(replace(bound, transfers=machine.links == Links()) for bound in found)]


def _leaves_device(graph: Graph, schedule: Schedule) -> bool:
    """The schedule moves tensors, or an operation can be run in a way that uses the host."""
    ways = (mode for modes in graph.operations.modes.values() for mode in modes)
    return bool((schedule.verbs >= Verb.OFFLOAD).any()) or any(m.on_host or m.reads_host for m in ways)


def _residency(
    problem: Problem, order: OrderName, seconds: float, time: float, fixed: Residency | None
) -> Residency:
    """From an earlier call, unless that was cut short and there is more time now.

    fixed: for the file's order, where one for any order is asked.
    """
    known = _known.setdefault(problem.graph, {})
    limit = device_limit(problem)
    spent, found = known.get((limit, order), (0.0, None))
    if found is None or (not found.finished and seconds > spent):
        if fixed is None:
            found = residency_bound(problem.graph, limit, seconds, time)
        else:
            found = free_order_bound(problem.graph, limit, seconds, time, fixed.moments)
        known[limit, order] = (seconds, found)
    return found
