"""Which of the swapped activations stay on the device after all: those that would be away shortest.

LoHan swaps whatever its order names, and leaves the device's memory for a larger batch; here the batch is
given. What is made last is needed first: it stays as long as the bytes at every moment keep within the room,
all fetches just before their uses. Linear in the swapped tensors times the runs.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.residence.demand import Demand
from ....planner.residence.lives import run_moment
from ....planner.residence.residence import Residence


def staying(
    graph: Graph, machine: Machine, way: Residence, swapped: AbstractSet[int], room: int
) -> Residence:
    """The same without the absences of what stays. room: device bytes."""
    demand = Demand(graph, machine, way)
    curve, away = demand.curve, dict(way.away)
    back = {fetch.tensor: fetch.use for fetch in demand.fetches if fetch.tensor in swapped}
    for x, position in sorted(way.away, key=lambda place: -place[1]):
        if x in back:
            absence = slice(run_moment(position) + 1, back[x])
            if int(curve[absence].max(initial=0)) + int(graph.tensors.bytes[x]) <= room:
                curve[absence] += graph.tensors.bytes[x]
                del away[x, position]
    return replace(way, away=away)
