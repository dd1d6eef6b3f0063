"""Lower bounds that a solution carries: no schedule within the budget can be faster.

| bound                                       | holds for                                                    |
|---------------------------------------------|--------------------------------------------------------------|
| time of all operations (planner/bounds.py)  | every schedule                                               |
| residency/residency.py, any order           | schedules without transfers: all, if there are no links      |
| residency/residency.py, the traced order    | those of them whose first runs keep the traced order         |
| either, with backward operations once       | those of them that run no backward operation twice           |
| offload/offload_bound.py, any order         | every schedule, if there are links                           |
| offload/offload_bound.py, the traced order  | with links, first runs in traced order, any transfers        |

Of a graph whose collectives are operations of a queue of their own these are the bounds without the time of
collectives: the compute queue has all that is left. The time of all operations counts each queue's.

Cheap bounds come first. Residency bounds are left out if an operation has an execution variant that uses the
host, or if the schedule transfers tensors. Each bound is computed once for each graph and limit in a process.
Its time is limited, and less time only makes it lower. A bound that fails is left out and reported: it never
costs the schedule. Why the bounds hold: docs/bounds.md, and program.py in both packages.

    residency/   the residency program: begin with its residency.py
    offload/     the offloading program: begin with its offload_bound.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar
from weakref import WeakKeyDictionary

from ...graphs.graph import Graph, Phase
from ...graphs.machine import Links, Machine
from ...graphs.transformations.one_queue import on_one_queue
from ...planner.bounds import backward_once, minimum_memory_once, time_bound
from ...planner.schedule.schedule import Schedule, Verb
from ...planner.variants import uses_host
from ..candidates import device_limit
from ..clock import Clock
from ..incumbent import PROVEN
from ..problem import Bound, OrderName, Problem
from .offload.offload_bound import moves, offload_bound
from .residency.residency import (
    Residency,
    TracedOrder,
    free_order_bound,
    residency_bound,
    residency_of,
    rising_bound,
)
from .residency.schedule import FIRST_SHARE, residency_schedule
from .residency.search import ResidencyBoundSearch

ALL_OPERATIONS = "time of all operations"

WORTH = 1e-4
"""Share of the time of all operations; if a bound recomputes more of backward, one without that follows."""

Found = TypeVar("Found")
Kind = tuple[int, OrderName, bool]
"""Bytes, order, whether backward operations run once."""

_offload: WeakKeyDictionary[Graph, dict[tuple[int, Machine, OrderName], tuple[float, Bound]]] = (
    WeakKeyDictionary()
)
_known: WeakKeyDictionary[Graph, dict[Kind, tuple[float, Residency]]] = WeakKeyDictionary()


def lower_bounds(
    problem: Problem, schedule: Schedule, time: float, seconds: float, notes: list[str] | None = None
) -> list[Bound]:
    """Compute lower bounds for a problem with a schedule that takes `time` seconds. Ctrl-C ends it.

    seconds: the most to spend.
    notes: takes a line for each bound that fails and is left out.
    """
    graph = problem.graph
    trivial = Bound(time_bound(graph), ALL_OPERATIONS, "any")
    # Proven optimal by the cheapest bound of all.
    if seconds <= 0.0 or time <= trivial.seconds * (1.0 + PROVEN):
        return [trivial]
    problem = _of_compute_queue(problem)
    graph = problem.graph
    clock, machine = Clock(seconds), problem.machine or graph.machine or Machine()
    alone = not _leaves_device(graph, schedule)
    found = [trivial]

    def attempt(name: str, compute: Callable[[], Found]) -> Found | None:
        if clock.interrupted:
            return None
        with clock.until_interrupted():
            try:
                return compute()
            # Any fault: a bound is an extra, and must not cost the schedule.
            except Exception as error:
                if notes is not None:
                    reason = " ".join(str(error).split())
                    notes.append(f"no {name} bound: {type(error).__name__}: {reason}")
        return None

    if moves(machine):
        part = clock.part(1 / 3) if alone else clock
        orders: tuple[OrderName, ...] = ("any", "file")
        for order in orders:
            # half for the first: what it leaves unused goes to the second
            left = part.left / (2 if order == "any" else 1)
            bound = attempt("offloading", partial(_offloading, problem, machine, order, left, time))
            found += [bound] if bound else []
    if alone:
        bounds = list[Bound]()
        fixed = attempt("residency", lambda: _residency(problem, "file", clock.left / 2, time))
        bounds += [fixed.bound] if fixed else []
        if fixed is not None and not fixed.interrupted:
            once = _once_counts(problem, fixed)
            # Half of what is left for the bound without repeated backward operations.
            share = 0.5 if once else 1.0
            free = attempt(
                "any-order residency",
                lambda: _residency(problem, "any", share * clock.left, time, fixed),
            )
            bounds += [free.bound] if free else []
            if once and not (free and (free.interrupted or free.bound.seconds == inf)):
                retried = attempt("backward-once", lambda: _backward_once(problem, clock, time, fixed))
                bounds += retried or []
        found += [replace(bound, transfers=machine.links == Links()) for bound in bounds]
    return found


def _of_compute_queue(problem: Problem) -> Problem:
    """Return the problem without the time of collectives that have a queue of their own."""
    if not problem.graph.operations.comm:
        return problem
    return replace(problem, graph=on_one_queue(problem.graph, 0.0))


def prove(
    problem: Problem,
    tell: Callable[[Bound], None],
    seconds: float,
    cancelled: Callable[[], bool],
    traced: TracedOrder | None = None,
) -> None:
    """Tell what schedules can't be faster than, as it rises, cheap first.

    traced: the residency program's search in traced order, if another thread runs it for the same problem.
    """
    tell(Bound(time_bound(problem.graph), ALL_OPERATIONS, "any"))
    if problem.graph.operations.comm:
        problem, traced = _of_compute_queue(problem), None
    graph, limit = problem.graph, device_limit(problem)
    machine = problem.machine or graph.machine or Machine()
    if moves(machine):
        found = offload_bound(
            graph,
            machine,
            budget=limit,
            time_limit=seconds,
            goal=inf,
            order="any",
            tell=tell,
            cancelled=cancelled,
        )
        _offload.setdefault(graph, {})[limit, machine, "any"] = seconds, found
        return
    if uses_host(graph):
        return

    def rise(bound: Bound) -> None:
        tell(replace(bound, transfers=machine.links == Links()))

    free = rising_bound(graph, limit, seconds, rise, cancelled, traced=traced)
    # With the seconds spent, so that a later call knows whether more could help.
    _known.setdefault(graph, {})[limit, "any", False] = seconds, free


def file_order(problem: Problem, seconds: float, cancelled: Callable[[], bool]) -> Residency:
    """Return the fastest schedule found in traced order, with its bound, and remember both."""
    found = residency_schedule(problem.graph, device_limit(problem), seconds, cancelled)
    _known.setdefault(problem.graph, {})[device_limit(problem), "file", False] = FIRST_SHARE * seconds, found
    return found


def proofs_of_none(problem: Problem, seconds: float) -> list[Bound]:
    """Compute infinite bounds: no schedule within the budget exists, or none that runs backward only once.

    They are computed if the budget is below the minimum memory of schedules in traced order that run each
    backward operation once. They are computed in fractions: what these don't prove, whole numbers seldom do,
    and slowly.

    seconds: the most to spend.
    """
    graph, limit = problem.graph, device_limit(problem)
    min_memory = minimum_memory_once(graph, problem.machine)
    if seconds <= 0.0 or min_memory is None or limit >= min_memory:
        return []
    proofs = [Bound(inf, "minimum memory, backward once", "file", backward_again=False)]
    for retried in (False, True):
        asked = graph if retried else backward_once(graph)
        bound = free_order_bound(asked, limit, seconds / 2, whole=False).bound
        if bound.seconds < inf:
            break
        proofs.append(replace(bound, backward_again=retried))
    return proofs


def known_residency(problem: Problem, order: OrderName, seconds: float, *, once: bool) -> Residency | None:
    """Return a residency bound with its prices, one that is known, or one in fractions alone.

    It is None if an operation has a variant that uses the host. seconds: the most to spend if none is known.
    """
    graph, limit = problem.graph, device_limit(problem)
    if uses_host(graph):
        return None
    _spent, found = _known.get(graph, {}).get((limit, order, once), (0.0, None))
    if found is None or not found.prices:
        search = ResidencyBoundSearch(backward_once(graph) if once else graph, limit, order, seconds)
        found = residency_of(search, order, whole=False)
    return found


def _once_counts(problem: Problem, found: Residency) -> bool:
    """Tell whether a bound for schedules that run no backward operation twice is likely to be larger."""
    graph, limit = problem.graph, device_limit(problem)
    min_memory = minimum_memory_once(graph, Machine())
    retried = found.reruns[graph.operations.phase >= Phase.BACKWARD]
    seconds = graph.operations.time[graph.operations.phase >= Phase.BACKWARD]
    return min_memory is not None and (
        limit < min_memory or float(retried @ seconds) > WORTH * time_bound(graph)
    )


def _backward_once(problem: Problem, clock: Clock, time: float, fixed: Residency | None) -> list[Bound]:
    """Compute bounds for schedules that run no backward operation twice.

    One is for any order. Another is infinite and for the traced order, if the budget is below the minimum
    memory of such schedules.
    """
    min_memory, bounds = minimum_memory_once(problem.graph, Machine()), list[Bound]()
    if min_memory is not None and device_limit(problem) < min_memory:
        bounds.append(Bound(inf, "minimum memory, backward once", "file"))
    bounds.append(_residency(problem, "any", clock.left, time, fixed, once=True).bound)
    return [replace(bound, backward_again=False) for bound in bounds]


def _offloading(problem: Problem, machine: Machine, order: OrderName, seconds: float, time: float) -> Bound:
    """Return the offloading bound, from an earlier call unless there is much more time now."""
    known = _offload.setdefault(problem.graph, {})
    key = device_limit(problem), machine, order
    spent, bound = known.get(key, (0.0, None))
    # A further program takes several times as long: less than twice the time brings none.
    if bound is None or (seconds > 2 * spent and bound.seconds < time):
        bound = offload_bound(
            problem.graph, machine, budget=key[0], time_limit=seconds, goal=time, order=order
        )
        known[key] = seconds, bound
    return bound


def _leaves_device(graph: Graph, schedule: Schedule) -> bool:
    """Tell whether the schedule transfers tensors, or an operation has a variant that uses the host."""
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
    """Return the residency bound, from an earlier call unless that was cut short and there is more time now.

    fixed: that of the traced order; a bound for any order begins with its moments.
    once: no backward operation runs twice.
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
