"""The fewest layers or blocks to offload with which a schedule fits the device, by bisection."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....graphs.errors import InputError
from ....graphs.machine import Machine
from ....planner.residency.prefetch_placement import simulate_residency
from ....planner.residency.residency import Residency
from ...candidates import device_limit
from ...problem import Problem


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
    roomy, limit = replace(machine, host_capacity=None, pinned=None), device_limit(problem)

    def fits(count: int) -> bool:
        return simulate_residency(problem.graph, roomy, limit, residency(count)) is not None

    last = len(counts) - 1
    return counts[bisect_left(counts, True, hi=last, key=fits) if fits(counts[last]) else last]
