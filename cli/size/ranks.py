"""Search of `plan size --ranks`: which batch each rank of sharded training takes, by FSDP2 and by a plan.

    FSDP2    its 2 × 3 policies, with the step that people have: updates at the end, and their copies
    plan     the fastest schedule found, which is never slower than the policies

Graphs differ from batch to batch in numbers alone, so the policies' schedules are made once and replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Machine, Peers
from ...graphs.machines.presets import Preset
from ...graphs.transformations.sharding import rank_bytes
from ...planner.addresses.caching_allocator import reserved_peak
from ...planner.bounds import offloads, time_bound
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import simulate
from ...planner.sizing.estimate_range import Span, memory_span
from ...planner.sizing.sizing import Known, Trial, given_batches, largest_batch, minimum_of, tightened, trial
from ...solvers.offloading.sharded.fsdp import policy_schedules
from ...solvers.problem import Problem
from .loops import Loop, Loops, planned_span
from .search import NEAR, Question, Room, first_batch, interruptible

_THOROUGH = 3
"""Batches at most for which the solver has its whole time."""
FASTER = 0.005
"""Share of an iteration by which a plan has to be faster than FSDP2's policies to be advised."""
_POINTS = 5
"""Points of the curve of time against memory."""
_ANY = 2**60
"""Bytes of a device of any size."""


class PolicyFigures(NamedTuple):
    """A policy of FSDP2 at one batch.

    least: smallest budget in bytes. seconds: of an iteration, None if it does not fit.
    """

    name: str
    schedule: Schedule
    least: int
    seconds: float | None


@dataclass(frozen=True)
class RankBatch:
    """A batch of each rank. plan: within the GPU's memory. policies: FSDP2's, the fastest that fit first."""

    plan: Trial
    policies: tuple[PolicyFigures, ...]

    @property
    def batch(self) -> int:
        return self.plan.batch

    @property
    def policy(self) -> PolicyFigures | None:
        """The fastest policy that fits."""
        return next((one for one in self.policies if one.seconds is not None), None)


class CurvePoint(NamedTuple):
    """The fastest known within a budget of device bytes; seconds are None if nothing is known to fit.

    host_peak: bytes that the plan has on the host.
    """

    budget: int
    policy: str | None
    policy_seconds: float | None
    seconds: float | None
    host_peak: int | None


@dataclass
class RanksResult:
    """Results on ranks that have one GPU each.

    machine: of a rank. batches: those tried. hasty: those whose plan may be far from the fastest.
    spans: device bytes of a plan, by batch, of the fastest and those that the solver had its whole time for.
    policy_spans: those of FSDP2's policies at the fastest batch, by name. curve: of that batch.
    shares: bytes of weights and optimizer states on each rank. tokens: of a sample, None if it has none.
    price: of a GPU per hour, None if not given. adapters: the layers that --lora adapts, None without.
    """

    preset: Preset
    room: Room
    machine: Machine
    batches: list[RankBatch] = field(default_factory=list[RankBatch])
    hasty: set[int] = field(default_factory=set[int])
    spans: dict[int, Span] = field(default_factory=dict[int, Span])
    policy_spans: dict[str, Span] = field(default_factory=dict[str, Span])
    curve: list[CurvePoint] = field(default_factory=list[CurvePoint])
    shares: int = 0
    tokens: int | None = None
    adapters: str | None = None
    price: float | None = None
    interrupted: bool = False

    def rate(self, one: RankBatch, seconds: float | None) -> float | None:
        """Return the samples per second of all GPUs."""
        return self.gpus * one.batch / seconds if seconds else None

    @property
    def gpus(self) -> int:
        """Number of GPUs: ranks of all replicas."""
        replicas = self.peers.replicas
        return self.peers.ranks * (replicas.count if replicas else 1)

    @property
    def peers(self) -> Peers:
        assert self.machine.links.peers is not None, "it is of sharded training"
        return self.machine.links.peers

    @property
    def has_host(self) -> bool:
        """Tell whether plans can offload to a host."""
        return offloads(self.machine)

    @property
    def plan_is_faster(self) -> bool:
        """Tell whether at the fastest batch a plan is faster than FSDP2's policies."""
        one = self.fastest
        if one is None or one.plan.seconds is None:
            return False
        return one.policy is None or one.plan.seconds < (1 - FASTER) * (one.policy.seconds or 0.0)

    @property
    def fastest(self) -> RankBatch | None:
        """The batch with the most samples per second by a plan, the smallest of equals."""
        fitting = [one for one in self.batches if one.plan.seconds]
        return max(fitting, key=lambda one: (self.rate(one, one.plan.seconds), -one.batch), default=None)

    @property
    def fastest_by_policy(self) -> RankBatch | None:
        """The batch with the most samples per second by a policy of FSDP2."""
        fitting = [one for one in self.batches if one.policy]
        return max(fitting, key=lambda one: (self.policy_rate(one) or 0.0, -one.batch), default=None)

    def policy_rate(self, one: RankBatch) -> float | None:
        return self.rate(one, one.policy and one.policy.seconds)


@dataclass
class RanksSearch:
    """Search on equal ranks. loops: of a rank. ask: the solver, on the machine of a rank."""

    loops: Loops
    ask: Question
    room: Room
    known: Known = field(default_factory=Known)
    _policies: dict[tuple[str, int], list[tuple[str, Schedule]]] = field(
        default_factory=dict[tuple[str, int], list[tuple[str, Schedule]]]
    )

    def run(self, batches: list[int] | None) -> RanksResult:
        """Search and return the results. batches: those to try, None: search. Raises MemplanError."""
        found = self._once(batches)
        marked = found.fastest
        if marked is not None and not found.interrupted:
            with interruptible(found):
                if not self.loops.agrees(marked.batch):
                    found = self._once(batches)
        return found

    def _once(self, batches: list[int] | None) -> RanksResult:
        found = RanksResult(self.loops.preset, self.room, self._machine)
        with interruptible(found):
            first = first_batch(batches, self._graph)
            tried = (
                given_batches(self._attempt, (one for one in batches if one >= first))
                if batches
                else largest_batch(self._attempt, first)
            )
            for one in tried:
                found.batches.append(RankBatch(one, self._at(one.batch)))
            self._sharpen(found)
            if found.fastest is not None:
                self._explain(found, found.fastest)
        if found.batches:
            batch = found.batches[0].batch
            found.tokens, found.adapters = self.loops.tokens(batch), self.loops.adapters(batch)
        return found

    # ── plans ───────────────────────────────────────────────────────────────────────────────────────

    def _attempt(self, batch: int) -> Trial:
        """Try a batch by what is known, FSDP2's policies among it, or else by a short search."""
        self._start_from_policies(batch)

        def solve(graph: Graph, budget: int) -> Schedule | None:
            known = self.known.best(graph, self._machine, budget)
            return self.known.noted(self.ask.quick)(graph, budget) if known is None else known

        return trial(self._graph(batch), self._machine, batch, self.room.planned, solve)

    def _solved(self, batch: int, ask: Question, budget: int) -> Trial:
        solve = self.known.alongside(self._machine, ask)
        return trial(self._graph(batch), self._machine, batch, budget, solve)

    def _sharpen(self, found: RanksResult) -> None:
        """Give the solver its whole time for the batches that promise the most."""
        found.hasty = {one.batch for one in found.batches if one.plan.figures}
        for _number in range(_THOROUGH):
            best = found.fastest
            rate = 0.0 if best is None else best.plan.samples_per_second or 0.0
            found.hasty = {batch for batch in found.hasty if self._promised(batch) > rate}
            left = [one for one in found.batches if one.batch in found.hasty]
            if not left:
                return
            # The fastest so far, then those that may be faster still.
            chosen = best if best in left else max(left, key=lambda one: one.plan.samples_per_second or 0.0)
            better = self._solved(chosen.batch, self.ask, self.room.planned)
            found.batches[found.batches.index(chosen)] = RankBatch(better, chosen.policies)
            found.spans[chosen.batch] = self._span(better)
            found.hasty.discard(chosen.batch)

    def _promised(self, batch: int) -> float:
        """Return the samples per second of a rank that no schedule exceeds, less what is not worth a
        search.
        """
        return batch / time_bound(self._graph(batch)) / (1 + NEAR)

    def _span(self, one: Trial) -> Span:
        loop, within = self.loops.planned(one.batch), tightened(self._graph(one.batch), self._machine, one)
        if (within.seconds or 0.0) <= (one.seconds or 0.0):  # it takes all that there is, and needs less
            one = within
        assert one.schedule is not None
        return planned_span(loop, one.schedule, one.budget, self._machine, self.room.constant)

    # ── FSDP2 ───────────────────────────────────────────────────────────────────────────────────────

    def _start_from_policies(self, batch: int) -> None:
        graph = self._graph(batch)
        if ("planned", len(graph.operations)) not in self._policies:
            for _name, schedule in self._made("planned", graph):
                self.known.add(graph, schedule)

    def _made(self, loop: str, graph: Graph) -> list[tuple[str, Schedule]]:
        """Return the policies' schedules of a loop, which are those of all batches with its operations."""
        key = loop, len(graph.operations)
        if key not in self._policies:
            rows = policy_schedules(Problem(graph, _ANY, self._machine))
            self._policies[key] = [(str(policy), schedule) for policy, schedule, _figures in rows]
        return self._policies[key]

    def _at(self, batch: int) -> tuple[PolicyFigures, ...]:
        """Return the policies at a batch, the fastest that fit first."""
        graph = self.loops.ordinary(batch).graph
        made = self._made("ordinary", graph)
        rows = [self._figures(graph, name, schedule) for name, schedule in made]
        return tuple(sorted(rows, key=lambda one: (one.seconds is None, one.seconds or 0.0, one.least)))

    def _figures(
        self, graph: Graph, name: str, schedule: Schedule, budget: int | None = None
    ) -> PolicyFigures:
        figures = simulate(graph, schedule, machine=self._machine).figures
        limit = self._room_of_policies if budget is None else budget
        seconds = figures.time if figures.least_budget <= limit else None
        if seconds is not None and figures.peak > limit:  # gathers then wait for memory
            seconds = simulate(graph, schedule, budget=limit, machine=self._machine).figures.time
        return PolicyFigures(name, schedule, figures.least_budget, seconds)

    @property
    def _room_of_policies(self) -> int:
        return max(1, self.room.planned - self.room.constant)

    def _policy_span(self, loop: Loop, one: PolicyFigures) -> Span:
        constant = 2 * self.room.constant  # a workspace of cuBLAS for the thread of backward too
        return memory_span(
            loop.graph, loop.worst, one.schedule, one.least, self._machine, constant, reserved_peak
        )

    # ── the batch to train with ─────────────────────────────────────────────────────────────────────

    def _explain(self, found: RanksResult, one: RankBatch) -> None:
        loop = self.loops.ordinary(one.batch)
        found.spans.setdefault(one.batch, self._span(one.plan))
        for policy in one.policies:
            found.policy_spans[policy.name] = self._policy_span(loop, policy)
        found.shares = rank_bytes(self._graph(one.batch))
        found.curve.extend(self._curve(one))

    def _curve(self, one: RankBatch) -> Iterator[CurvePoint]:
        """Yield the fastest known within less and less memory, from what the fastest policy takes."""
        graph, ordinary = self._graph(one.batch), self.loops.ordinary(one.batch).graph
        assert one.plan.figures is not None
        most = max([one.plan.figures.peak, *(row.least for row in one.policies if row.seconds is not None)])
        least = minimum_of(graph, self._machine)
        for number in range(_POINTS):
            budget = int(most * (least / most) ** (number / _POINTS))
            left = budget - self.room.constant
            policies = [self._figures(ordinary, row.name, row.schedule, left) for row in one.policies]
            fastest = min((row for row in policies if row.seconds is not None), key=_seconds, default=None)
            plan = self._solved(one.batch, self.ask.quick, budget)
            yield CurvePoint(
                budget + self.room.constant,
                fastest and fastest.name,
                fastest and fastest.seconds,
                plan.seconds,
                plan.figures and plan.figures.host_peak,
            )

    @cached_property
    def _machine(self) -> Machine:
        return self.ask.any_size

    def _graph(self, batch: int) -> Graph:
        return self.loops.planned(batch).graph


def _seconds(one: PolicyFigures) -> float:
    return one.seconds or 0.0
