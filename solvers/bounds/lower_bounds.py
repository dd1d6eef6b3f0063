"""The lower bounds that a solution carries: what no schedule within the budget can be faster than.

| bound                                       | holds for                                                    |
|---------------------------------------------|--------------------------------------------------------------|
| time of all operations (planner/bounds.py)  | every schedule                                               |
| residency/residency.py, any order           | schedules without transfers: all, where there are no links   |
| residency/residency.py, the file's order    | those of them whose first runs keep the file's order         |
| either, with backward operations once       | those of them that run no backward operation twice           |
| offload/offload_bound.py, any order         | every schedule, where there are links                        |
| offload/offload_bound.py, the file's order  | with links, first runs in the file's order, whatever moves   |

Cheap first. Residency bounds are left out where an operation has a way to use the host, or the schedule
moves tensors. Each is computed once for each graph and limit in a process; the time that it may take is
given, and less time only makes it lower. One that fails is left out and told: it never costs the schedule.
Why they hold: docs/bounds.md, and program.py in both rooms.

    residency/   the residency program: begin with its residency.py
    offload/     the offloading program: begin with its offload_bound.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import TypeVar
from weakref import WeakKeyDictionary

from ...graphs.graph import Graph, Phase
from ...graphs.machine import Links, Machine
from ...planner.bounds import backward_once, once_floor, time_bound, uses_host
from ...planner.schedule.schedule import Schedule, Verb
from ..candidates import device_limit
from ..problem import Bound, OrderName, Problem
from .offload.offload_bound import moves, offload_bound
from .residency.residency import Residency, free_order_bound, residency_bound, rising_bound
from .residency.schedule import FIRST_SHARE, residency_schedule

ALL_OPERATIONS = "time of all operations"

PROVEN = 1e-6
"""The relative gap up to which a schedule counts as the fastest."""

WORTH = 1e-4
"""Seconds of backward that a bound runs again, as a part of all, from which on one without is asked for."""

Found = TypeVar("Found")
Kind = tuple[int, OrderName, bool]
"""Bytes, order, whether backward operations may run again."""

_offload: WeakKeyDictionary[Graph, dict[tuple[int, Machine, OrderName], tuple[float, Bound]]] = (
    WeakKeyDictionary()
)
_known: WeakKeyDictionary[Graph, dict[Kind, tuple[float, Residency]]] = WeakKeyDictionary()


def lower_bounds(
    problem: Problem, schedule: Schedule, time: float, seconds: float, notes: list[str] | None = None
) -> list[Bound]:
    """For a problem with a schedule that takes `time` seconds. seconds: the most to spend. Ctrl-C ends it.

    One that fails is left out: notes takes a line for it.
    """
    graph = problem.graph
    trivial = Bound(time_bound(graph), ALL_OPERATIONS, "any")
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
        end = start + (seconds / 3 if alone else seconds)
        orders: tuple[OrderName, ...] = ("any", "file")
        for order in orders:
            left = (end - monotonic()) / (2 if order == "any" else 1)
            bound = attempt("offloading", partial(_offloading, problem, machine, order, left, time))
            found += [bound] if bound else []
    if alone:
        end, bounds = start + seconds, list[Bound]()
        fixed = attempt("residency", lambda: _residency(problem, "file", (end - monotonic()) / 2, time))
        bounds += [fixed.bound] if fixed else []
        if fixed is not None and not fixed.interrupted:
            once = _once_counts(problem, fixed)
            share = 0.5 if once else 1.0
            free = attempt(
                "any-order residency",
                lambda: _residency(problem, "any", share * (end - monotonic()), time, fixed),
            )
            bounds += [free.bound] if free else []
            if once and not (free and (free.interrupted or free.bound.seconds == inf)):
                again = attempt("backward-once", lambda: _backward_once(problem, end, time, fixed))
                bounds += again or []
        found += [replace(bound, transfers=machine.links == Links()) for bound in bounds]
    return found


def prove(
    problem: Problem, tell: Callable[[Bound], None], seconds: float, cancelled: Callable[[], bool]
) -> None:
    """Tell what schedules can't be faster than, as it rises, cheap first."""
    graph, limit = problem.graph, device_limit(problem)
    machine = problem.machine or graph.machine or Machine()
    tell(Bound(time_bound(graph), ALL_OPERATIONS, "any"))
    if moves(machine):
        found = offload_bound(graph, machine, limit, seconds, inf, "any", tell, cancelled)
        _offload.setdefault(graph, {})[limit, machine, "any"] = seconds, found
        return
    if uses_host(graph):
        return

    def rise(bound: Bound) -> None:
        tell(replace(bound, transfers=machine.links == Links()))

    free = rising_bound(graph, limit, seconds, rise, cancelled)
    _known.setdefault(graph, {})[limit, "any", False] = seconds, free


def file_order(problem: Problem, seconds: float, cancelled: Callable[[], bool]) -> Residency:
    """The fastest schedule found in the file's order, with its bound, which is then known."""
    found = residency_schedule(problem.graph, device_limit(problem), seconds, cancelled)
    _known.setdefault(problem.graph, {})[device_limit(problem), "file", False] = FIRST_SHARE * seconds, found
    return found


def proofs_of_none(problem: Problem, seconds: float) -> list[Bound]:
    """Infinite bounds: no schedule within the budget exists, or none unless a backward operation runs twice.

    Looked for where the budget is below the once-floor, in fractions: what these don't prove, whole numbers
    seldom do, and slowly. seconds: the most to spend.
    """
    graph, limit = problem.graph, device_limit(problem)
    floor = once_floor(graph, problem.machine)
    if seconds <= 0.0 or floor is None or limit >= floor:
        return []
    proofs = [Bound(inf, "once-floor", "file", backward_again=False)]
    for again in (False, True):
        asked = graph if again else backward_once(graph)
        bound = free_order_bound(asked, limit, seconds / 2, whole=False).bound
        if bound.seconds < inf:
            break
        proofs.append(replace(bound, backward_again=again))
    return proofs


def _once_counts(problem: Problem, found: Residency) -> bool:
    """A bound for schedules that run no backward operation twice is likely to be larger."""
    graph, limit = problem.graph, device_limit(problem)
    floor = once_floor(graph, Machine())
    again = found.reruns[graph.operations.phase >= Phase.BACKWARD]
    seconds = graph.operations.time[graph.operations.phase >= Phase.BACKWARD]
    return floor is not None and (limit < floor or float(again @ seconds) > WORTH * time_bound(graph))


def _backward_once(problem: Problem, end: float, time: float, fixed: Residency | None) -> list[Bound]:
    """For schedules that run no backward operation twice: in any order, and below the once-floor in the
    file's."""
    floor, bounds = once_floor(problem.graph, Machine()), list[Bound]()
    if floor is not None and device_limit(problem) < floor:
        bounds.append(Bound(inf, "once-floor", "file"))
    bounds.append(_residency(problem, "any", end - monotonic(), time, fixed, once=True).bound)
    return [replace(bound, backward_again=False) for bound in bounds]


def _offloading(problem: Problem, machine: Machine, order: OrderName, seconds: float, time: float) -> Bound:
    """From an earlier call, unless there is much more time now."""
    known = _offload.setdefault(problem.graph, {})
    key = device_limit(problem), machine, order
    spent, bound = known.get(key, (0.0, None))
    if bound is None or (seconds > 2 * spent and bound.seconds < time):
        bound = offload_bound(problem.graph, machine, key[0], seconds, time, order)
        known[key] = seconds, bound
    return bound


def _leaves_device(graph: Graph, schedule: Schedule) -> bool:
    """The schedule moves tensors, or an operation can be run in a way that uses the host."""
    return bool((schedule.verbs >= Verb.OFFLOAD).any()) or uses_host(graph)


def _residency(
    problem: Problem,
    order: OrderName,
    seconds: float,
    time: float,
    fixed: Residency | None = None,
    *,
    once: bool = False,
) -> Residency:
    """From an earlier call, unless that was cut short and there is more time now.

    fixed: of the file's order, with whose moments one for any order begins. once: nothing of backward twice.
    """
    known = _known.setdefault(problem.graph, {})
    limit = device_limit(problem)
    spent, found = known.get((limit, order, once), (0.0, None))
    if found is None or (not found.finished and seconds > spent):
        graph = backward_once(problem.graph) if once else problem.graph
        if order == "file":
            found = residency_bound(graph, limit, seconds, time)
        else:
            found = free_order_bound(graph, limit, seconds, time, fixed.moments if fixed else ())
        known[limit, order, once] = (seconds, found)
    return found
