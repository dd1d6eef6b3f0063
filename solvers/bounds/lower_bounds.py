"""The lower bounds that a solution carries: what no schedule within the budget can be faster than.

| bound                                       | holds for                                                    |
|---------------------------------------------|--------------------------------------------------------------|
| time of all operations (planner/bounds.py)  | every schedule                                               |
| residency/residency.py, any order           | schedules without transfers: all, where there are no links   |
| residency/residency.py, the file's order    | those of them whose first runs keep the file's order         |
| offload/offload_bound.py                    | with links, first runs in the file's order, whatever moves   |

Cheap first. Residency bounds are left out where an operation has a way to use the host, or the schedule
moves tensors. For transfers in another order than the file's only the time of all operations is claimed.
Each is computed once for each graph and limit in a process; the time that it may take is given, and less
time only makes it lower. One that fails is left out and told: it never costs the schedule. Why they hold:
docs/bounds.md, and program.py in both rooms.

    residency/   the residency program: begin with its residency.py
    offload/     the offloading program: begin with its offload_bound.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import TypeVar
from weakref import WeakKeyDictionary

from ...graphs.graph import Graph
from ...graphs.machine import Links, Machine
from ...planner.bounds import time_bound
from ...planner.schedule.schedule import Schedule, Verb
from ..candidates import device_limit
from ..problem import Bound, OrderName, Problem
from .offload.offload_bound import moves, offload_bound
from .residency.residency import Residency, free_order_bound, residency_bound

PROVEN = 1e-6
"""The relative gap up to which a schedule counts as the fastest."""

Found = TypeVar("Found")

_offload: WeakKeyDictionary[Graph, dict[tuple[int, Machine], tuple[float, Bound]]] = WeakKeyDictionary()
_known: WeakKeyDictionary[Graph, dict[tuple[int, OrderName], tuple[float, Residency]]] = WeakKeyDictionary()


def lower_bounds(
    problem: Problem, schedule: Schedule, time: float, seconds: float, notes: list[str] | None = None
) -> list[Bound]:
    """For a problem with a schedule that takes `time` seconds. seconds: the most to spend. Ctrl-C ends it.

    One that fails is left out: notes takes a line for it.
    """
    graph = problem.graph
    trivial = Bound(time_bound(graph), "time of all operations", "any")
    if seconds <= 0.0 or time <= trivial.seconds * (1.0 + PROVEN):
        return [trivial]
    start, machine = monotonic(), problem.machine or graph.machine or Machine()
    alone = not _leaves_device(graph, schedule)
    found = [trivial]

    def attempt(name: str, compute: Callable[[], Found]) -> Found | None:
        try:
            return compute()
        except Exception as error:
            if notes is not None:
                reason = " ".join(str(error).split())
                notes.append(f"no {name} bound: {type(error).__name__}: {reason}")
            return None

    if moves(machine):
        share = seconds / 3 if alone else seconds
        bound = attempt("offloading", lambda: _offloading(problem, machine, share, time))
        found += [bound] if bound else []
    if alone:
        left = seconds - (monotonic() - start)
        fixed = attempt("residency", lambda: _residency(problem, "file", left / 2, time, None))
        left = seconds - (monotonic() - start)
        free = None
        if fixed is not None and not fixed.interrupted:
            free = attempt("any-order residency", lambda: _residency(problem, "any", left, time, fixed))
        bounds = [residency.bound for residency in (free, fixed) if residency]
        found += [replace(bound, transfers=machine.links == Links()) for bound in bounds]
    return found


def _offloading(problem: Problem, machine: Machine, seconds: float, time: float) -> Bound:
    """From an earlier call, unless there is much more time now."""
    known = _offload.setdefault(problem.graph, {})
    key = device_limit(problem), machine
    spent, bound = known.get(key, (0.0, None))
    if bound is None or (seconds > 2 * spent and bound.seconds < time):
        bound = offload_bound(problem.graph, machine, key[0], seconds, time)
        known[key] = seconds, bound
    return bound


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
