"""FSDP2's policies on ranks, with the step that people have: updates at the end, and their copies.

Bytes are those of FSDP2 itself, which gathers and scatters whole units. The 2 × 3 policies, and for one batch
those that are tuned layer by layer. Graphs differ from batch to batch in numbers alone, so the policies'
schedules are made once and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.replay.ranking import replays_of
from ..planner.schedule.schedule import Schedule
from ..solvers.clock import Clock
from ..solvers.offloading.sharded.fsdp import TimedPolicy, built_policies, built_policy, policy_schedules
from ..solvers.offloading.sharded.fsdp_tuned import Built, Tuning
from ..solvers.offloading.sharded.policies import POLICIES, LayeredPolicy, Policy
from ..solvers.offloading.sharded.unit_lifetimes import unit_peak
from ..solvers.problem import Problem
from .estimate_range import Span
from .loops import Loops
from .trial import Known

_ANY = 2**60
"""Bytes of a device of any size."""

Named = list[tuple[str, Schedule]]


class PolicyFigures(NamedTuple):
    """A policy of FSDP2 at one batch.

    least: smallest budget in bytes, with FSDP2's buffers. seconds: of an iteration, None if it does not fit.
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
    _tuned: dict[int, Built] = field(default_factory=dict[int, Built])

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
        graph, rows = self.loops.ordinary(batch).graph, list[PolicyFigures]()
        for name, schedule in self._ordinary(batch):
            found = self._figures(graph, schedule, budget)
            # None is for memories or execution variants that the machine lacks.
            assert found is not None, "it was made for this machine"
            rows.append(PolicyFigures(name, schedule, *found))
        return tuple(sorted(rows, key=lambda one: (one.seconds is None, one.seconds or 0.0, one.least)))

    def tune(self, batch: int, budget: int) -> None:
        """Try policies layer by layer, as patient people do, for a budget in bytes."""
        graph, named = self.loops.ordinary(batch).graph, {str(policy): policy for policy in POLICIES}
        timed = [TimedPolicy(named[row.name], *row[1:]) for row in self.figures(batch, budget)]
        built = self._tuned.setdefault(len(graph.operations), {})

        def measure(policy: Policy | LayeredPolicy, schedule: Schedule) -> TimedPolicy | None:
            found = self._figures(graph, schedule, budget)
            return None if found is None else TimedPolicy(policy, schedule, *found)

        clock = Clock(None, lambda: False)
        Tuning(Problem(graph, budget, self.machine), timed, clock, built, measure).run()

    def with_tuned(self, batch: int, budget: int, known: Known) -> tuple[PolicyFigures, ...]:
        """Return the policies at a batch within a budget in bytes, the fastest that fit first.

        The first may be one that `tune` has tried, if none of the 2 × 3 is as fast. known: it receives that
        one's schedule in a plan's loop, so that no plan is slower.
        """
        rows, graph = self.figures(batch, budget), self.loops.ordinary(batch).graph
        fastest = next((row.seconds for row in rows if row.seconds is not None), inf)
        best: LayeredPolicy | None = None
        found: tuple[PolicyFigures, ...] = ()
        for policy, schedule in self._tuned.get(len(graph.operations), {}).items():
            figures = None if schedule is None else self._figures(graph, schedule, budget)
            if schedule is None or figures is None or (seconds := figures[1]) is None:
                continue
            if seconds < fastest:
                fastest, best = seconds, policy
                found = (PolicyFigures(str(policy), schedule, *figures),)
        planned = self.loops.planned(batch).graph
        if best is not None and (schedule := built_policy(planned, best)) is not None:
            known.add(planned, schedule)
        return (*found, *rows)

    def span(self, batch: int, one: PolicyFigures, constant: int) -> Span:
        """Return a policy's device bytes. constant: what cuBLAS keeps."""
        return self.loops.units_span(self.loops.ordinary(batch), one.schedule, constant)

    def _figures(self, graph: Graph, schedule: Schedule, budget: int) -> tuple[int, float | None] | None:
        """Return FSDP2's smallest budget and its seconds within a budget, as in PolicyFigures; None if the
        schedule breaks a rule."""
        replays = replays_of(graph, self.machine)
        if (planned := replays.least_budget(schedule)) is None:
            return None
        least = max(planned, unit_peak(graph, schedule))
        return least, replays.seconds(schedule, budget) if least <= budget else None
