"""Errors if no residency fits the device: the least budget that one needs, or that the host
and the disk are too small for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import repeat

from ....graphs.errors import MemplanError
from ....graphs.machine import Machine, Memory
from ....planner.budget import spelled
from ....planner.errors import InvalidScheduleError
from ....planner.residency.prefetch_placement import build_schedule, simulate_residency
from ....planner.residency.residency import Residency
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.pinned import PINNED
from ....planner.simulator.simulate import Figures, simulate
from ....planner.simulator.walk import Walk
from ...candidates import device_limit, infeasible, keeping
from ...problem import NotAcceptedError, Problem


def first_that_fits(
    solver: str, problem: Problem, machine: Machine, residencies: Iterable[Residency]
) -> tuple[Schedule, Figures]:
    """Return the first schedule within the budget, of several residencies.

    Raises InfeasibleError with the least that any of them takes; NotAcceptedError if the host or the disk is
    too small for all of them on a device of any size.
    """
    limit, tried = device_limit(problem), list(residencies)
    for residency in tried:
        found = simulate_residency(problem.graph, machine, limit, residency)
        if found:
            return found
    raise refused(solver, problem, machine, tried)


def refused(
    solver: str,
    problem: Problem,
    machine: Machine,
    residencies: Iterable[Residency],
    kept: Iterable[Collection[int]] = repeat(()),
) -> MemplanError:
    """Return the error that says why none of these residencies fits.

    kept: for each residency the tensors whose copies on the device stay to the iteration's end.
    """
    graph, tried = problem.graph, list(residencies)
    endless = replace(machine, device_capacity=None)
    # A device without limit: if a residency fails even so, the host or the disk is too small.
    least = [
        simulate(graph, keeping(found[0], stay), budget=2**62, machine=endless).figures.least_budget
        for residency, stay in zip(tried, kept, strict=False)
        if (found := simulate_residency(graph, endless, 2**62, residency))
    ]
    if least:
        return infeasible(solver, problem, min(least))
    roomy = replace(endless, host_capacity=None, disk_capacity=None, pinned=None)
    needed = [found for residency in tried if (found := _room_of(problem, roomy, residency))]
    room = _spelled(machine.host_capacity, machine.disk_capacity, machine.pinned)
    if not needed:
        return NotAcceptedError(f"{solver} needs more than {room}")
    # One residency's three figures: the least of each apart might belong to none.
    host, disk, pinned = min(needed, key=sum)
    need = _spelled(host, disk or None, None if machine.pinned is None else pinned)
    return NotAcceptedError(f"{solver} needs {need}; the machine has {room}")


def _spelled(host: int | None, disk: int | None, pinned: int | None) -> str:
    sizes = ((host, "of host memory"), (pinned, "of pinned host memory"), (disk, "of disk"))
    return " and ".join(f"{spelled(size)} {place}" for size, place in sizes if size is not None)


def _room_of(problem: Problem, machine: Machine, residency: Residency) -> tuple[int, int, int] | None:
    """Return the least host, disk and pinned bytes with which a residency holds.

    None if a schedule cannot say it.
    """
    try:
        schedule = build_schedule(problem.graph, residency)
    except InvalidScheduleError:
        return None
    walk = Walk(problem.graph, schedule, budget=None, machine=machine)
    walk.run_iteration()
    host, disk, pinned = (walk.ledgers[place].least for place in (Memory.HOST, Memory.DISK, PINNED))
    return host, disk, pinned
