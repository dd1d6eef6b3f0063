"""MemFerry: some weights come to the device, others are read where they lie in host memory.

Yao, Liang, Xu, Zhao, Wang, Li, "MemFerry: a fast and memory efficient offload training framework with hybrid
GPU computation" (INFOCOM 2025). Weights and optimizer states live in host memory and the CPU updates them; a
layer's weights are used in one of three ways (memferry_estimate.py), which takes modes that read weights in
host memory (graphs/direct_access.py); without such modes every layer is fetched. Gradients go to the host.

`choice = published` is Algorithm 1 with backtracking, corrected, and a greedy choice of DFGB
(memferry_greedy.py). `exact`, the default, is the best of all ways by a program over states
(memferry_exact.py), within the room that the budget leaves for weights; the simulator takes the fastest of
it, the published choice and the plain ways, and turns single layers while that helps: gradients and updates,
which the model leaves out, share the machine. `reserve` is GO-MemFerry's factor: the share of the gradients'
bytes that may stay on the device (memferry_gradients.py); 0 by default, since a gradient that leaves costs
no computation here.

Activations stay (keep), or only each layer's output does and the layer runs again (checkpoint, for chains);
auto tries both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..graphs.errors import InputError
from ..graphs.graph import Phase
from ..planner.bounds import time_bound
from ..planner.errors import InvalidScheduleError
from ..planner.schedule import Schedule
from ..planner.sequence import Run, in_plain_mode
from ..planner.simulate import Figures
from .chains import device_limit, infeasible
from .early_updates import early_updates
from .iteration_runs import iteration_runs
from .links import linked_machine
from .memferry_estimate import Way, estimate
from .memferry_exact import best_choice
from .memferry_greedy import greedy
from .memferry_plan import Plan
from .problem import Answer, NotAcceptedError, Options, Problem, Status
from .training_layers import training_layers

NAME = "memferry"

_ROOMS = 5
"""So often the room for weights is made smaller where what the model chose does not fit."""


@dataclass(frozen=True)
class Settings:
    """choice: exact or published. activations: auto, keep or checkpoint. reserve: share of the gradients'
    bytes. states: that the exact program keeps a layer. flips: ways of single layers that the simulator
    tries at last. twice: weights may leave behind forward and be fetched again, where they don't fit."""

    choice: str = "exact"
    activations: str = "auto"
    reserve: float = 0.0
    states: int = 1000
    flips: int = 50
    twice: bool = True

    def __post_init__(self) -> None:
        for name, value, words in (
            ("choice", self.choice, ("exact", "published")),
            ("activations", self.activations, ("auto", "keep", "checkpoint")),
        ):
            if value not in words:
                raise InputError(f"{name} must be {' or '.join(words)}, not {value!r}")
        if not 0.0 <= self.reserve <= 1.0:
            raise InputError(f"reserve must be from 0 to 1, not {self.reserve}")
        for name, number, least in (("states", self.states, 1), ("flips", self.flips, 0)):
            if number < least:
                raise InputError(f"{name} must be {least} or more, not {number}")


@dataclass(frozen=True)
class _Found:
    schedule: Schedule
    figures: Figures
    plan: Plan
    ways: list[Way]
    exact: bool

    def line(self) -> str:
        counts = [f"{self.ways.count(way)} {way.name}" for way in Way if way in self.ways]
        again = ", layers run again" if self.plan.checkpoint else ""
        optimal = ", no choice is faster by the model" if self.exact else ""
        return (
            f"{', '.join(counts)} of {len(self.ways)} layers{again}: {self.figures.time:.6g} s simulated, "
            f"{estimate(self.plan.costs, self.ways):.6g} s forward and backward by the paper's model{optimal}"
        )


def solve(problem: Problem, options: Options) -> Answer:
    settings: Settings = options.settings or Settings()
    search = _Search(problem, settings, options)
    try:
        for plan in search.plans:
            search.search(plan)
        search.flip()
    except KeyboardInterrupt:
        search.interrupted = True
        if search.best is None:
            raise
    if search.best is None:
        raise infeasible(NAME, problem, search.least())
    options.report(search.best.line())
    status = Status.FEASIBLE if search.stopped or search.interrupted else Status.HEURISTIC
    return Answer(search.best.schedule, status, time_bound(problem.graph), search.interrupted)


class _Search:
    """best: the fastest found within the budget. stopped: by the time limit."""

    def __init__(self, problem: Problem, settings: Settings, options: Options) -> None:
        self.problem, self.settings, self._options = problem, settings, options
        self.limit = device_limit(problem)
        self.best: _Found | None = None
        self.stopped = self.interrupted = False
        self._seen: dict[tuple[bool | Way, ...], bool] = {}
        self._deadline = inf if options.time_limit is None else monotonic() + options.time_limit
        graph, linked = problem.graph, linked_machine(NAME, problem, "weights and gradients")
        if not (graph.operations.phase == Phase.BACKWARD).any():
            raise NotAcceptedError(f"{NAME} takes training graphs; {graph.name} has no backward operations")
        self.plans = [
            Plan(NAME, graph, linked, runs, checkpoint=checkpoint, reserve=settings.reserve)
            for runs, checkpoint in self._iterations()
        ]

    def search(self, plan: Plan) -> None:
        if self.best is not None and self.best.figures.time <= plan.computing:
            return
        published = greedy(plan.costs)
        fits = self._judge(plan, published)
        if self.settings.choice == "published":
            return
        twice = self.settings.twice
        known, room = published if fits else plan.thriftiest(twice=twice), self.limit - plan.beside
        for _attempt in range(_ROOMS):
            if plan.on_device(known) > room:
                known = plan.thriftiest(twice=twice)
            if plan.on_device(known) > room:
                break
            choice = best_choice(
                plan.costs,
                room=room,
                twice=twice,
                known=known,
                states=self.settings.states,
                proceed=self._proceed,
            )
            if choice is None or self._judge(plan, choice.ways, choice.exact):
                break
            room = plan.on_device(choice.ways) * 3 // 4
        self._judge(plan, plan.all_in(Way.GFGB))
        if plan.on_device(plan.all_in(Way.GFGB)) > self.limit - plan.beside:
            self._judge(plan, plan.thriftiest(twice=twice))
            if twice:
                self._judge(plan, plan.all_in(Way.TWICE))

    def flip(self) -> None:
        """Single layers in other ways, where the simulator finds that faster; so many at most."""
        if self.best is None or self.settings.choice == "published":
            return
        plan, ways, left = self.best.plan, self.best.ways, self.settings.flips
        known = plan.quick_seconds(ways, self.limit)
        for number, way in plan.other_ways(ways, twice=self.settings.twice):
            left -= 1
            if left < 0 or not self._proceed():
                break
            turned = [*ways[:number], way, *ways[number + 1 :]]
            seconds = plan.quick_seconds(turned, self.limit)
            if seconds < known:
                ways, known = turned, seconds
        self._judge(plan, ways)

    def _judge(self, plan: Plan, ways: list[Way], exact: bool = False) -> bool:
        """Whether a schedule with these ways fits; the best is kept."""
        key = plan.checkpoint, *ways
        if key not in self._seen:
            if self.best is not None and not self._proceed():
                return True
            found = plan.schedule(ways, self.limit)
            self._seen[key] = found is not None
            if found and (self.best is None or found[1].time < self.best.figures.time):
                self.best = _Found(*found, plan, ways, exact)
        return self._seen[key]

    def least(self) -> int:
        """The smallest budget that can be reached. Raises NotAcceptedError where the host is too small."""
        published, twice = self.settings.choice == "published", self.settings.twice
        try:
            return min(
                plan.least(greedy(plan.costs) if published else plan.thriftiest(twice=twice))
                for plan in self.plans
            )
        except InvalidScheduleError as error:
            raise NotAcceptedError(f"{NAME} has no valid schedule on this machine: {error}") from error

    def _iterations(self) -> Iterator[tuple[list[Run], bool]]:
        """The runs of an iteration, and whether layers run again."""
        graph = self.problem.graph
        if self.settings.activations != "checkpoint":
            yield early_updates(graph, in_plain_mode(range(len(graph.operations)))), False
        if self.settings.activations != "keep":
            try:
                yield iteration_runs(training_layers(NAME, graph), checkpoint=True), True
            except NotAcceptedError:
                if self.settings.activations == "checkpoint":
                    raise

    def _proceed(self) -> bool:
        self.stopped = self.stopped or monotonic() > self._deadline or self._options.cancelled()
        return not self.stopped
