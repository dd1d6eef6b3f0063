"""Sharded search: recomputation by annealing, with each weight gathered for the run that reads it.

    sharded graph ──without_weights──▶ graph without weights ──search──▶ runs ──▶ gather, run, delete; scatter

A run's weights are there while it runs, so they count as its workspace; shares count always. What is left is
recomputation within a budget, which `search` solves, in any order. A weight stays where the next run reads it
too. So it comes near the minimum memory, and waits for the network at each run: a start for `joint`, which
lets weights stay and gathers them earlier where there is room.

Minimises the seconds of all runs, without those of the network. Nothing is proven here. Developed for
memplan. The search takes the time; all else is linear but for one sort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Links, Machine, Memory
from ....planner.bounds import minimum_memory, time_bound
from ....planner.residency.prefetch_placement import build_schedule
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run, prune, runs_of
from ....planner.simulator.footprint import Footprint
from ....planner.simulator.simulate import simulate
from ...candidates import device_limit, infeasible
from ...incumbent import Incumbent
from ...problem import InfeasibleError, NotFoundError, Options, Problem, SolverResult
from ...recomputation.search import search
from .policies import accepted

NAME = "sharded-search"

_TRIES = 3
"""Searches at most, each within what the one before took too much."""


@dataclass(frozen=True)
class Settings(search.Settings):
    """Settings of sharded-search: those of search."""


def solve(problem: Problem, options: Options) -> SolverResult:
    accepted(problem.graph, NAME)
    graph, limit = problem.graph, device_limit(problem)
    machine = problem.machine or graph.machine or Machine()
    shares = Footprint(graph, machine.hierarchy).shares
    always = sum(share for x, share in shares.items() if graph.persistent[x])
    lowest = minimum_memory(graph, machine)
    if limit < lowest:
        raise infeasible(NAME, problem, None)
    clock, stripped, excess, least = options.clock(), without_weights(graph), 0, None
    for tries_left in reversed(range(_TRIES)):
        # Seconds and schedules of the graph without weights are not those of this problem's race.
        seconds = None if options.time_limit is None else clock.left / (tries_left + 1)
        alone = replace(options, time_limit=seconds, start=None, race=Incumbent())
        try:
            found = search.solve(Problem(stripped, max(1, limit - always - excess), Machine()), alone)
        except NotFoundError:
            raise NotFoundError(NAME, limit, lowest, least) from None
        except InfeasibleError:  # its least is that of a graph without shares of gradients
            raise infeasible(NAME, problem, least) from None
        schedule = build_schedule(graph, just_in_time(graph, prune(graph, runs_of(found.schedule))))
        least = simulate(graph, schedule, machine=machine).figures.least_budget
        if least <= limit:
            return replace(found, schedule=schedule, bounds=(), lower_bound=time_bound(graph))
        excess += least - limit  # gradients have shares next to them, which the search does not count
    raise infeasible(NAME, problem, least)


def without_weights(graph: Graph) -> Graph:
    """Return the graph on one device, with spread weights as workspace of the runs that read them.

    Spread weights and optimizer states have no bytes there; gradients are whole until their update.
    """
    tensors, operations = graph.tensors, graph.operations
    persistent = sorted(x for x in tensors.spread if graph.persistent[x])
    sizes, workspace = tensors.bytes.copy(), operations.workspace.copy()
    for o in np.flatnonzero(operations.phase != Phase.UPDATE).tolist():
        workspace[o] += sum(int(sizes[x]) for x in {*graph.read_lists[o]} & {*persistent})
    sizes[persistent] = 0
    return replace(
        graph,
        tensors=replace(tensors, bytes=sizes, spread=frozenset()),
        operations=replace(operations, workspace=workspace, modes={}),
        machine=Machine(links=Links()),
    )


def just_in_time(graph: Graph, runs: list[Run]) -> Residency:
    """Return the decisions by which each weight is gathered for the run that reads it, and then deleted.

    It stays if the next run reads it too.
    """
    weights = {x for x in graph.tensors.spread if graph.tensors.kind[x] == Kind.PARAMETER}
    offloaded: dict[TensorUse, int] = {}
    reads: list[set[int]] = [
        set()
        if graph.operations.phase[operation] == Phase.UPDATE
        else weights.intersection(graph.input_lists[operation])
        for operation, _mode in runs
    ]
    for place, used in enumerate(reads):
        following = reads[place + 1] if place + 1 < len(reads) else set[int]()
        for x in used - following:
            offloaded[x, place] = Memory.PEERS
    return Residency(runs, offloaded)
