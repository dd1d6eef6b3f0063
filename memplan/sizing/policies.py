"""FSDP2's 2 × 3 policies on ranks, with the step that people have: updates at the end, and their copies.

Graphs differ from batch to batch in numbers alone, so the policies' schedules are made once and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.replay.ranking import replays_of
from ..planner.schedule.schedule import Schedule
from ..solvers.offloading.sharded.fsdp import built_policies, policy_schedules
from ..solvers.problem import Problem
from .estimate_range import Span
from .loops import Loops

_ANY = 2**60
"""Bytes of a device of any size."""

Named = list[tuple[str, Schedule]]


class PolicyFigures(NamedTuple):
    """A policy of FSDP2 at one batch.

    least: smallest budget in bytes. seconds: of an iteration, None if it does not fit.
    """

    name: str
    schedule: Schedule
    least: int
    seconds: float | None


@dataclass
class Policies:
    """The policies of a model, at every batch. loops, machine: of a rank, with a device of any size."""

    loops: Loops
    machine: Machine
    _made: dict[tuple[str, int], Named] = field(default_factory=dict[tuple[str, int], Named])

    def of_plans(self, graph: Graph) -> Named:
        """Return the policies of a plan's loop, for all batches with the graph's number of operations."""
        key = "planned", len(graph.operations)
        if key not in self._made:
            rows = policy_schedules(Problem(graph, _ANY, self.machine))
            self._made[key] = [(str(policy), schedule) for policy, schedule, _figures in rows]
        return self._made[key]

    def known(self, graph: Graph) -> bool:
        """Tell whether those of a plan's loop were made before."""
        return ("planned", len(graph.operations)) in self._made

    def _ordinary(self, batch: int) -> Named:
        """Return those of the loop that people have: a policy is valid there if it is in a plan's loop, which
        differs in updates alone."""
        graph = self.loops.ordinary(batch).graph
        key = "ordinary", len(graph.operations)
        if key not in self._made:
            valid = {name for name, _schedule in self.of_plans(self.loops.planned(batch).graph)}
            rows = [(str(policy), schedule) for policy, schedule in built_policies(graph)]
            self._made[key] = [row for row in rows if row[0] in valid]
        return self._made[key]

    def figures(self, batch: int, budget: int) -> tuple[PolicyFigures, ...]:
        """Return the policies at a batch within a budget in bytes, the fastest that fit first."""
        replays = replays_of(self.loops.ordinary(batch).graph, self.machine)
        rows = list[PolicyFigures]()
        for name, schedule in self._ordinary(batch):
            least = replays.least_budget(schedule)
            # None is for memories or execution variants that the machine lacks.
            assert least is not None, "it was made for this machine"
            rows.append(PolicyFigures(name, schedule, least, replays.seconds(schedule, budget)))
        return tuple(sorted(rows, key=lambda one: (one.seconds is None, one.seconds or 0.0, one.least)))

    def span(self, batch: int, one: PolicyFigures, constant: int) -> Span:
        """Return a policy's device bytes. constant: what cuBLAS keeps."""
        return self.loops.span(self.loops.ordinary(batch), one.schedule, constant, self.machine)
