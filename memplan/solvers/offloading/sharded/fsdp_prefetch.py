"""FSDP2's policies that keep weights, with gathers for the next iteration during backward.

    policy ──▶ runs without updates ──▶ network clock ──▶ updates once their gradients have arrived; where the
                                                          network would rest, a gather for the next iteration

FSDP2 updates weights after backward, so the next gathers wait for its end: forward waits for the network, and
before that the network for backward. Here a weight is updated once its gradient is scattered. Whenever the
network would rest, the weight that was updated last is gathered for the next iteration. So these weights are
spread over all layers, and forward gathers the others until its last layer. A weight that is gathered takes
the room of its stale copy, so the peak, which is at the loss, is the policy's.

The network clock is an estimate; the simulator times the schedules, with several look-aheads for the gathers
in forward. If memory lacks, fewer bytes are gathered ahead. Nothing is proven. Developed for memplan. Linear
in the edges but for one sort, and at most 3 · 4 · 6 simulations.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Machine, Peers
from ....planner.bounds import time_bound
from ....planner.errors import InvalidScheduleError
from ....planner.residency.prefetch_placement import build_schedule, place_prefetches
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run
from ....planner.simulator.simulate import Figures, simulate
from ...candidates import device_limit, infeasible
from ...problem import NotAcceptedError, Options, Problem, SolverResult, Status
from ..layers.early_updates import updates_apart
from .policies import POLICIES, Policy, accepted, policy_residency, weight_uses

NAME = "fsdp-prefetch"

_KEEPING = [policy for policy in POLICIES if not policy.reshard]

_LOOK_AHEADS = (1.0, 3.0, inf)
_SHARES = (1.0, 0.5, 0.25, 0.0)
"""Shares of the weights' bytes that may be gathered ahead; the first that fits is taken."""


@dataclass(frozen=True)
class Settings:
    """Settings of fsdp-prefetch: none."""


def solve(problem: Problem, options: Options) -> SolverResult:
    accepted(problem.graph, NAME)
    clock, fastest = options.clock(), None
    for policy in _KEEPING:
        if fastest is not None and clock.over:
            break
        found = _with_most_ahead(problem, policy)
        if found is not None and (fastest is None or found[1].time < fastest[1].time):
            fastest = found
            options.report(f"{NAME}: {policy}")
    if fastest is None:
        raise infeasible(NAME, problem, _least(problem))
    return SolverResult(fastest[0], Status.HEURISTIC, time_bound(problem.graph))


def _with_most_ahead(problem: Problem, policy: Policy) -> tuple[Schedule, Figures] | None:
    """Return a policy's schedule with as many bytes gathered ahead as fit; None if it does not fit at all."""
    graph, machine = problem.graph, _machine(problem)
    for share in _SHARES:
        try:
            residency = prefetching(graph, machine, policy, share)
            if found := place_prefetches(graph, machine, device_limit(problem), residency, _LOOK_AHEADS):
                return found
        except (InvalidScheduleError, NotAcceptedError):  # without layers that have numbers, say
            return None
    return None


def _least(problem: Problem) -> int | None:
    """Return the bytes of the smallest budget with nothing gathered ahead; None if no policy can be used."""
    graph, machine, found = problem.graph, _machine(problem), list[int]()
    for policy in _KEEPING:
        with suppress(InvalidScheduleError, NotAcceptedError):
            schedule = build_schedule(graph, prefetching(graph, machine, policy, 0.0))
            found.append(simulate(graph, schedule, machine=machine).figures.least_budget)
    return min(found, default=None)


def _machine(problem: Problem) -> Machine:
    return problem.machine or problem.graph.machine or Machine()


def prefetching(graph: Graph, machine: Machine, policy: Policy, share: float = 1.0) -> Residency:
    """Return the decisions of a policy, with updates in backward and gathers for the next iteration.

    share: of the weights' bytes, that may be gathered ahead.
    """
    assert machine.links.peers is not None  # the registry refuses machines without a network
    base = policy_residency(graph, policy)
    others, updates = updates_apart(graph, base.runs)
    uses, position = weight_uses(graph, others), list[int]()
    network, waiting = _Network(graph, machine.links.peers, others, uses), deque(sorted(updates))
    runs, slots, updated = list[Run](), dict[TensorUse, int](), list[int]()
    ahead = share * sum(int(graph.tensors.bytes[x]) for x in uses)
    for place, run in enumerate(others):
        while waiting and waiting[0][0] < place and network.has_gradients(waiting[0][1]):
            _after, update = waiting.popleft()
            network.clock += graph.seconds(*update)
            updated += [x for x in graph.mutate_lists[update[0]] if x in uses]
            runs.append(update)
        while updated and network.rests and graph.tensors.bytes[updated[-1]] <= ahead:
            x = updated.pop()
            ahead -= int(graph.tensors.bytes[x])
            network.gather(x)
            slots[x, position[uses[x][0]]] = len(runs)  # after this use, so in the iteration before
        position.append(len(runs))
        runs.append(run)
        network.run(place)
    runs += [update for _after, update in waiting]
    offloaded = {(x, position[place]): to for (x, place), to in base.offloaded.items()}
    return Residency(runs, offloaded, prefetch_slots=slots)


class _Network:
    """A clock of the network along runs, with each weight gathered for its first use.

    clock, free: seconds at which the device, and the network, have done what they were given.
    """

    def __init__(self, graph: Graph, peers: Peers, runs: list[Run], uses: dict[int, list[int]]) -> None:
        self._graph, self._runs = graph, runs
        sizes = graph.tensors.bytes.astype(np.float64)
        seconds = np.where(graph.persistent, peers.seconds(sizes), peers.scatters.seconds(sizes))
        self._seconds: list[float] = seconds.tolist()
        self._arrived: dict[int, float] = {}
        self.clock = self.free = 0.0
        last = {o: place for place, (o, _mode) in enumerate(runs)}
        self._complete, self._first = dict[int, list[int]](), dict[int, list[int]]()
        for x in sorted(graph.tensors.spread):
            if not graph.persistent[x]:
                made = max((last[o] for o in graph.producers[x].tolist() if o in last), default=-1)
                self._complete.setdefault(made, []).append(x)
        for x, places in uses.items():
            self._first.setdefault(places[0], []).append(x)

    @property
    def rests(self) -> bool:
        return self.free <= self.clock

    def gather(self, x: int) -> None:
        self.free = max(self.free, self.clock) + self._seconds[x]

    def run(self, place: int) -> None:
        """Gather what a run is the first to use, run it, and scatter the gradients that it completes."""
        for x in self._first.get(place, ()):
            self.free += self._seconds[x]
            self.clock = max(self.clock, self.free)
        self.clock += self._graph.seconds(*self._runs[place])
        for x in self._complete.get(place, ()):
            self.free = self._arrived[x] = max(self.free, self.clock) + self._seconds[x]

    def has_gradients(self, update: Run) -> bool:
        """Tell whether the gradients that an update reads have been scattered."""
        return all(self._arrived.get(x, 0.0) <= self.clock for x in self._graph.read_lists[update[0]])
