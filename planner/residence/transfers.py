"""Where the prefetches of a residence stand: early enough to be hidden, as far as the memory allows.

Copies down start at once, first in first out. Copies up keep the order of need, so an early one never delays
a later one but by the memory it takes. For a *look-ahead* of k, each is wanted on its way k times its own
duration before the next in the queue must start; it is put there, or later, where all between leaves room.
The simulator tries several look-aheads, with and without a reserve, and the fastest schedule is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ..errors import InvalidScheduleError
from ..schedule.schedule import Schedule
from ..simulator.simulate import Figures, simulate
from .demand import Demand
from .residence import Residence, residence_schedule

LOOK_AHEADS = (0.0, 1.0, 1.5, 3.0, inf)


def placed(
    graph: Graph,
    machine: Machine,
    budget: int,
    residence: Residence,
    look_aheads: Sequence[float] = LOOK_AHEADS,
) -> tuple[Schedule, Figures] | None:
    """The fastest schedule over the look-aheads, with its figures; None where none fits.

    budget: device bytes. A place that `residence.back` names already is kept.
    """
    demand = Demand(graph, machine, residence)
    if demand.peak > budget:
        return None
    best: tuple[Schedule, Figures] | None = None
    largest = max((int(graph.tensors.bytes[fetch.tensor]) for fetch in demand.fetches), default=0)
    for reserve in (0, largest):
        for look_ahead in look_aheads:
            back = {**demand.places(look_ahead, budget - reserve), **residence.back}
            found = judged(graph, machine, budget, replace(residence, back=back))
            if found and (best is None or found[1].time < best[1].time):
                best = found
    return best


def judged(
    graph: Graph, machine: Machine, budget: int, residence: Residence
) -> tuple[Schedule, Figures] | None:
    """The schedule with its figures, None where the simulator refuses it."""
    try:
        schedule = residence_schedule(graph, residence)
        return schedule, simulate(graph, schedule, budget=budget, machine=machine).figures
    except InvalidScheduleError:
        return None
