"""The fewest layers, blocks or updates to offload with which a schedule fits the device, by interpolation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from ....graphs.errors import InputError
from ....graphs.machine import Machine
from ....planner.residency.prefetch_placement import simulate_residency
from ....planner.residency.residency import Residency
from ....planner.schedule.schedule import Schedule
from ....planner.simulator.simulate import Figures
from ...candidates import device_limit
from ...clock import Clock
from ...problem import Problem
from .refusals import refused


@dataclass(frozen=True)
class Policy:
    """A policy with a number: how much it offloads.

    counts: the numbers to choose from, rising; what fits with one of them fits with the next.
    residency: of a number, the decisions.
    """

    name: str
    counts: Sequence[int]
    residency: Callable[[int], Residency]


@dataclass(frozen=True)
class FittingPolicy:
    """A policy with the fewest that fits, its schedule and the figures of that."""

    policy: Policy
    count: int
    schedule: Schedule
    figures: Figures


def counts_of(setting: str, requested: int | None, most: int) -> range:
    """Return the numbers to choose from: up to `most`, or the requested one. Raises InputError if it is more.

    setting: the solver's name and the setting's, for the error.
    """
    if requested is None:
        return range(most + 1)
    if requested > most:
        raise InputError(f"{setting} must be at most {most}, not {requested}")
    return range(requested, requested + 1)


def fewest(
    problem: Problem, machine: Machine, counts: Sequence[int], residency: Callable[[int], Residency]
) -> int:
    """Return the fewest to offload with which the device is large enough; the most if it never is.

    counts: rising numbers; what fits with one of them fits with the next.
    residency: of a number, the decisions with so many offloaded.
    """
    # More of them take more of the host: one that is too small would hide that few suffice.
    roomy = replace(machine, device_capacity=None, host_capacity=None, pinned=None)
    limit = device_limit(problem)

    def least(place: int) -> float:
        held = simulate_residency(problem.graph, roomy, _ANY, residency(counts[place]))
        return inf if held is None else held[1].least_budget

    low, high = 0, len(counts) - 1
    before = least(low)
    if before <= limit or low == high:
        return counts[low]
    after = least(high)
    if after > limit:
        return counts[high]
    tries = 0
    while high - low > 1:
        # Mostly each frees as much as the others; every third time by halves, where they do not.
        part = 0.5 if before == inf or tries % 3 == 2 else (before - limit) / (before - after)
        middle = min(max(low + ceil(part * (high - low)), low + 1), high - 1)
        size, tries = least(middle), tries + 1
        if size <= limit:
            high, after = middle, size
        else:
            low, before = middle, size
    return counts[high]


_ANY = 2**62
"""Bytes of a device of any size."""


def fastest_of_fewest(
    solver: str, problem: Problem, machine: Machine, policies: Iterable[Policy], clock: Clock
) -> FittingPolicy:
    """Return the fastest policy, each with the fewest that fits.

    Once the clock has expired no further policy is tried, if one fits.

    Raises InfeasibleError, NotAcceptedError, or KeyboardInterrupt if the clock was interrupted before.
    """
    found, last, limit = list[FittingPolicy](), list[Residency](), device_limit(problem)
    with clock.until_interrupted():
        for policy in policies:
            count = fewest(problem, machine, policy.counts, policy.residency)
            last.append(policy.residency(count))
            held = simulate_residency(problem.graph, machine, limit, last[-1])
            if held is not None:
                found.append(FittingPolicy(policy, count, *held))
            if found and clock.expired:
                break
    if not found:
        clock.raise_if_interrupted()
        raise refused(solver, problem, machine, last)
    return min(found, key=lambda one: one.figures.time)
