"""Search of `plan size --ranks`: which batch each rank of sharded training takes, by FSDP2 and by a plan.

    FSDP2    its 2 × 3 policies, with the step that people have: updates at the end, and their copies
    plan     the fastest schedule found, which is never slower than the policies

Graphs differ from batch to batch in numbers alone, so the policies' schedules are made once and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..graphs.graph import Graph
from ..graphs.machine import Machine, Peers
from ..graphs.machines.presets import Preset
from ..graphs.transformations.sharding import rank_bytes
from ..planner.addresses.caching_allocator import reserved_peak
from ..planner.bounds import offloads, time_bound
from ..planner.replay.ranking import replays_of
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import figures_of
from ..solvers.offloading.joint.compiling import load
from ..solvers.offloading.sharded.fsdp import built_policies, policy_schedules
from ..solvers.problem import Options, Problem
from .estimate_range import Span, memory_span
from .loops import Loop, Loops, planned_span
from .search import NEAR, Question, Room, first_batch, interruptible
from .trial import BatchTrial, Known, given_batches, largest_batch, minimum_of, tightened, trial

_PROMISING, _THOROUGH = 3, 2
"""Batches at most for which the solver has a moment, and its whole time."""
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

    plan: BatchTrial
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
            load(Options(report=self.ask.report))
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

    def _attempt(self, batch: int) -> BatchTrial:
        """Try a batch by what is known, FSDP2's policies among it, or else by a short search."""
        self._start_from_policies(batch)

        def solve(graph: Graph, budget: int) -> Schedule | None:
            known = self.known.best(graph, self._machine, budget)
            return self.known.noted(self.ask.quick)(graph, budget) if known is None else known

        return trial(self._graph(batch), self._machine, batch, self.room.planned, solve)

    def _solved(self, batch: int, ask: Question, budget: int) -> BatchTrial:
        """Ask the solver, from the fastest known schedule on, unless that is as fast as any can be."""

        def solve(graph: Graph, budget: int) -> Schedule | None:
            known = self.known.best(graph, self._machine, budget)
            if known is not None:
                figures = figures_of(graph, known, budget=budget, machine=self._machine)
                if figures.time <= (1 + FASTER) * time_bound(graph):
                    return known
            return self.known.alongside(self._machine, replace(ask, start=known))(graph, budget)

        return trial(self._graph(batch), self._machine, batch, budget, solve)

    def _sharpen(self, found: RanksResult) -> None:
        """Ask the solver for a moment for the batches that promise the most; then, with all its time, for the
        fastest."""
        found.hasty, asked = {one.batch for one in found.batches if one.plan.figures}, set[int]()
        for _number in range(_PROMISING):
            left = [one for one in self._promising(found) if one.batch not in asked]
            if left:
                chosen = max(left, key=lambda one: one.plan.samples_per_second or 0.0)
                asked.add(chosen.batch)
                self._improve(found, chosen, self.ask.quick)
        for _number in range(_THOROUGH):
            best = found.fastest
            if best is not None and best in self._promising(found):
                better = self._improve(found, best, self.ask)
                found.spans[best.batch] = self._span(better)
                found.hasty.discard(best.batch)

    def _promising(self, found: RanksResult) -> list[RankBatch]:
        """Return the batches that a longer search may make faster than the fastest."""
        best = found.fastest
        rate = 0.0 if best is None else best.plan.samples_per_second or 0.0
        found.hasty = {batch for batch in found.hasty if self._promised(batch) > rate}
        return [one for one in found.batches if one.batch in found.hasty]

    def _improve(self, found: RanksResult, one: RankBatch, ask: Question) -> BatchTrial:
        better = self._solved(one.batch, ask, self.room.planned)
        found.batches[found.batches.index(one)] = RankBatch(better, one.policies)
        return better

    def _promised(self, batch: int) -> float:
        """Return the samples per second of a rank that no schedule exceeds, less what is not worth a
        search.
        """
        return batch / time_bound(self._graph(batch)) / (1 + NEAR)

    def _span(self, one: BatchTrial) -> Span:
        loop, within = self.loops.planned(one.batch), tightened(self._graph(one.batch), self._machine, one)
        if (within.seconds or 0.0) <= (one.seconds or 0.0):  # it takes all that there is, and needs less
            one = within
        assert one.schedule is not None
        return planned_span(loop, one.schedule, one.budget, self._machine, self.room.constant)

    # ── FSDP2 ───────────────────────────────────────────────────────────────────────────────────────

    def _start_from_policies(self, batch: int) -> None:
        graph = self._graph(batch)
        if ("planned", len(graph.operations)) not in self._policies:
            for _name, schedule in self._planned_policies(graph):
                self.known.add(graph, schedule)

    def _planned_policies(self, graph: Graph) -> list[tuple[str, Schedule]]:
        """Return the policies of a plan's loop, for all batches with the graph's number of operations."""
        key = "planned", len(graph.operations)
        if key not in self._policies:
            rows = policy_schedules(Problem(graph, _ANY, self._machine))
            self._policies[key] = [(str(policy), schedule) for policy, schedule, _figures in rows]
        return self._policies[key]

    def _ordinary_policies(self, batch: int) -> list[tuple[str, Schedule]]:
        """Return those of the loop that people have: a policy is valid there if it is in a plan's loop, which
        differs in updates alone."""
        graph = self.loops.ordinary(batch).graph
        key = "ordinary", len(graph.operations)
        if key not in self._policies:
            valid = {name for name, _schedule in self._planned_policies(self._graph(batch))}
            rows = [(str(policy), schedule) for policy, schedule in built_policies(graph)]
            self._policies[key] = [row for row in rows if row[0] in valid]
        return self._policies[key]

    def _at(self, batch: int) -> tuple[PolicyFigures, ...]:
        """Return the policies at a batch, the fastest that fit first."""
        graph = self.loops.ordinary(batch).graph
        made, room = self._ordinary_policies(batch), self._room_of_policies
        rows = [self._figures(graph, name, schedule, room) for name, schedule in made]
        return tuple(sorted(rows, key=lambda one: (one.seconds is None, one.seconds or 0.0, one.least)))

    def _figures(self, graph: Graph, name: str, schedule: Schedule, budget: int) -> PolicyFigures:
        replays = replays_of(graph, self._machine)
        least = replays.least_budget(schedule)
        assert least is not None, "it was made for this machine"
        return PolicyFigures(name, schedule, least, replays.seconds(schedule, budget))

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

    def _curve(self, one: RankBatch) -> list[CurvePoint]:
        """Return the fastest known within less and less memory, from what the fastest policy takes."""
        graph = self._graph(one.batch)
        assert one.plan.figures is not None
        most = max([one.plan.figures.peak, *(row.least for row in one.policies if row.seconds is not None)])
        least = minimum_of(graph, self._machine)
        budgets = [int(most * (least / most) ** (number / _POINTS)) for number in range(_POINTS)]
        # What is found within less memory is known to the searches within more.
        points = [self._point(one, budget) for budget in reversed(budgets)]
        return points[::-1]

    def _point(self, one: RankBatch, budget: int) -> CurvePoint:
        ordinary = self.loops.ordinary(one.batch).graph
        left = budget - self.room.constant
        policies = [self._figures(ordinary, row.name, row.schedule, left) for row in one.policies]
        fastest = min((row for row in policies if row.seconds is not None), key=_seconds, default=None)
        plan = self._solved(one.batch, self.ask.quick, budget)
        return CurvePoint(
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
