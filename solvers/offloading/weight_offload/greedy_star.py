"""Greedy*: the greedy of weight offloading without the discounted communication, a baseline.

Minimised, assumed, symbols and where to read: as in offload_greedy.py, but for this. A second absence of a
version counts in full when absences are chosen (`discount`), and is paid for: the weight is copied to the
host again before each absence (`again`). The fastest of the variants that hold is taken; nothing is searched
then. Complexity: that of Algorithms 1 and 2 there, and one simulation for each variant.

Reference: O. Beaumont et al., Weight offloading strategies for training large DNN models, 2022,
hal-03580767, section 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....planner.schedule.schedule import Schedule
from ...problem import Answer, Options, Problem
from ..cycles.cycle import Cycle
from ..cycles.steps import schedule_of_order
from .result import solved
from .starts import CLOSE_VARIANTS, VARIANTS, greedy_orders, lazy_order


@dataclass(frozen=True)
class Settings:
    """None."""


def solve(problem: Problem, options: Options) -> Answer:
    return solved("greedy-star", problem, options, _schedules)


def _schedules(cycle: Cycle) -> Iterator[Schedule]:
    for variants in (VARIANTS, CLOSE_VARIANTS):
        found = 0
        for variant in variants:
            for order in greedy_orders(cycle, [replace(variant, discount=False)]):
                found += 1
                yield schedule_of_order(cycle, order, offload_each=True)
        if found:
            return
    yield schedule_of_order(cycle, lazy_order(cycle, range(len(cycle.absences))), offload_each=True)
