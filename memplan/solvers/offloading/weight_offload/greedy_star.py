"""Greedy*: the greedy of weight offloading without the discounted communication, a baseline.

Minimised, assumed, symbols and where to read: as in offload_greedy.py, but for this. A second interval of a
version counts in full when intervals are chosen (`discount`), and is placed and paid for: the weight counts
as changed when it comes back (`copied_each_time`), so that Algorithm 2 copies it to the host once more. The
fastest of the variants that hold is taken; nothing is searched then. Complexity: that of Algorithms 1 and 2
there, and one simulation for each variant.

Reference: O. Beaumont et al., Weight offloading strategies for training large DNN models, 2022,
hal-03580767, section 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from ....planner.schedule.schedule import Schedule
from ...problem import Options, Problem, SolverResult
from ..cycles.cycle import FROZEN, Cycle
from ..cycles.steps import schedule_of_order
from .result import solved
from .scheduling import greedy_order
from .selection import chosen_intervals, moved_bytes
from .starts import CLOSE_VARIANTS, VARIANTS, lazy_order


@dataclass(frozen=True)
class Settings:
    """None."""


def solve(problem: Problem, options: Options) -> SolverResult:
    return solved("greedy-star", problem, options, _schedules)


def _schedules(cycle: Cycle) -> Iterator[Schedule]:
    for variants in (VARIANTS, CLOSE_VARIANTS):
        found = 0
        for variant in variants:
            chosen = chosen_intervals(cycle, replace(variant, discount=False))
            if chosen is None or moved_bytes(cycle, chosen) > (cycle.host_limit or inf):
                continue
            copied = copied_each_time(cycle, chosen)
            order = greedy_order(copied, chosen)
            if order is not None:
                found += 1
                yield schedule_of_order(copied, order)
        # The closer variants are for budgets in which the first ones find no place.
        if found:
            return
    copied = copied_each_time(cycle, range(len(cycle.intervals)))
    yield schedule_of_order(copied, lazy_order(copied, range(len(copied.intervals))))


def copied_each_time(cycle: Cycle, chosen: Iterable[int]) -> Cycle:
    """Return the cycle as if weights changed where chosen intervals end, except the last of each version."""
    intervals, changed_by = list(cycle.intervals), list(cycle.changed_by)
    last: dict[int, int] = {}  # of a version: its chosen interval before

    def since_change(number: int) -> tuple[int, int]:
        _weight, after, _before, version = cycle.intervals[number]
        # Runs since the version was made, around the iteration's end.
        return version, (after - cycle.changed_by[version][1]) % cycle.runs

    for number in sorted((a for a in chosen if cycle.intervals[a].version != FROZEN), key=since_change):
        weight, _after, _before, version = cycle.intervals[number]
        # Every interval but a version's first has a version of its own, made where the one before ended.
        if version in last:
            intervals[number] = intervals[number]._replace(version=len(changed_by))
            changed_by.append((weight, cycle.intervals[last[version]].before))
        last[version] = number
    return replace(cycle, intervals=intervals, changed_by=changed_by)
