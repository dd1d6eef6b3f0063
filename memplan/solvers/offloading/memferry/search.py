"""The fastest that MemFerry finds: choices of its algorithms, validated by the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....graphs.errors import MemplanError
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run, in_default_mode
from ....planner.simulator.simulate import Figures
from ...candidates import device_limit, require_backward
from ...links import linked_machine
from ...problem import NotAcceptedError, Options, Problem
from ...settings import SolverSettings, setting
from ..layers.early_updates import early_updates
from ..layers.refusals import refused
from ..layers.runs import always_kept, layer_runs
from ..layers.training import training_layers
from .estimate import Treatment, estimate
from .exact import best_choice
from .gradients import gradient_layers
from .greedy import greedy
from .plan import Plan

NAME = "memferry"

_ROOMS = 5
"""Times that the room for weights is made smaller if the model's choice does not fit."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of memferry."""

    choice: str = setting("exact", "the program to solve", words=("exact", "published"))
    activations: str = setting("auto", "what becomes of activations", words=("auto", "keep", "checkpoint"))
    gradients: str = setting(
        "auto",
        "copied: after the operation that produces them; direct: written to the host by variants of that "
        "operation (GO-MemFerry); auto: whichever is faster",
        words=("auto", "copied", "direct"),
    )
    reserve: float = setting(
        0.0, "share of the gradients' bytes that may stay on the device", least=0, most=1
    )
    states: int = setting(1000, "states that the exact program keeps per layer", least=1)
    flips: int = setting(50, "changes of single layers that the simulator tries at last", least=0)
    twice: bool = setting(
        True, "weights may leave after forward and be fetched a second time, if they don't fit"
    )


@dataclass(frozen=True)
class MemFerryResult:
    schedule: Schedule
    figures: Figures
    plan: Plan
    treatments: list[Treatment]
    exact: bool

    def line(self) -> str:
        counts = [
            f"{self.treatments.count(treatment)} {treatment.name}"
            for treatment in Treatment
            if treatment in self.treatments
        ]
        repeated = ", layers recomputed" if self.plan.checkpoint else ""
        repeated += ", gradients written to the host" if self.plan.direct else ""
        optimal = ", no choice is faster by the model" if self.exact else ""
        return (
            f"{', '.join(counts)} of {len(self.treatments)} layers{repeated}: "
            f"{self.figures.time:.6g} s simulated, "
            f"{estimate(self.plan.costs, self.treatments):.6g} s forward and backward "
            f"by the paper's model{optimal}"
        )


class MemFerrySearch:
    """A search over plans and choices.

    best: the fastest found within the budget.

    The last plan has traced order, for budgets in which no other fits: an update that makes a tensor may take
    less memory at its own position.
    """

    def __init__(self, problem: Problem, settings: Settings, options: Options) -> None:
        self.problem, self.settings, self._options = problem, settings, options
        self.limit = device_limit(problem)
        self.best: MemFerryResult | None = None
        self._seen: dict[tuple[Plan | Treatment, ...], bool] = {}
        self.clock = options.clock()
        graph, linked = problem.graph, linked_machine(NAME, problem, "weights and gradients")
        require_backward(NAME, graph)

        treatments = self._gradient_variants()

        def planned(runs: Sequence[Run], checkpoint: bool = False) -> list[Plan]:
            reserve = settings.reserve
            return [
                Plan(NAME, graph, linked, runs, checkpoint=checkpoint, reserve=reserve, direct=direct)
                for direct in treatments
            ]

        self.plans = [plan for iteration in self._iterations() for plan in planned(*iteration)]
        in_order = in_default_mode(range(len(graph.operations)))
        self._last = planned(in_order) if settings.activations != "checkpoint" else []
        self.plans += self._last

    def search(self, plan: Plan) -> None:
        best = self.best
        if best is not None and (plan in self._last or best.figures.time <= plan.computing):
            return
        published = greedy(plan.costs)
        fits = self._judge(plan, published)
        if self.settings.choice == "published":
            return
        twice = self.settings.twice
        known, room = published if fits else plan.least_on_device(twice=twice), self.limit - plan.extra
        for _attempt in range(_ROOMS):
            if plan.bytes_on_device(known) > room:
                known = plan.least_on_device(twice=twice)
            if plan.bytes_on_device(known) > room:
                break
            choice = best_choice(
                plan.costs,
                room=room,
                twice=twice,
                known=known,
                states=self.settings.states,
                proceed=self.clock.goes_on,
            )
            if choice is None or self._judge(plan, choice.treatments, choice.exact):
                break
            # The choice fits by the model and not when simulated, so the model gets less room.
            room = plan.bytes_on_device(choice.treatments) * 3 // 4
        self._judge(plan, plan.all_in(Treatment.GFGB))
        if plan.bytes_on_device(plan.all_in(Treatment.GFGB)) > self.limit - plan.extra:
            self._judge(plan, plan.least_on_device(twice=twice))
            if twice:
                self._judge(plan, plan.all_in(Treatment.TWICE))

    def flip(self) -> None:
        """Change the treatment of single layers if the simulator finds that faster.

        At most `flips` of them are tried.
        """
        if self.best is None or self.settings.choice == "published":
            return
        plan, treatments, left = self.best.plan, self.best.treatments, self.settings.flips
        known = plan.quick_seconds(treatments, self.limit)
        for number, treatment in plan.other_treatments(treatments, twice=self.settings.twice):
            left -= 1
            if left < 0 or self.clock.expired:
                break
            turned = [*treatments[:number], treatment, *treatments[number + 1 :]]
            seconds = plan.quick_seconds(turned, self.limit)
            if seconds < known:
                treatments, known = turned, seconds
        self._judge(plan, treatments)

    def _judge(self, plan: Plan, treatments: list[Treatment], exact: bool = False) -> bool:
        """Simulate a choice, keep it if it is the best, and tell whether it fits."""
        key = plan, *treatments
        if key not in self._seen:
            if self.best is not None and self.clock.expired:
                return True
            found = plan.schedule(treatments, self.limit)
            self._seen[key] = found is not None
            if found and (self.best is None or found[1].time < self.best.figures.time):
                self.best = MemFerryResult(*found, plan, treatments, exact)
        return self._seen[key]

    def refused(self) -> MemplanError:
        """Return the error that says why nothing fits."""
        published, twice = self.settings.choice == "published", self.settings.twice
        machine = self.plans[0].linked.machine
        residencies = [
            plan.residency(greedy(plan.costs) if published else plan.least_on_device(twice=twice))
            for plan in self.plans
        ]
        return refused(NAME, self.problem, machine, residencies, [plan.kept for plan in self.plans])

    def _gradient_variants(self) -> list[bool]:
        """Return the settings to try of whether producers write gradients to the host."""
        able = any(layer.direct for layer in gradient_layers(self.problem.graph))
        if self.settings.gradients == "direct" and not able:
            raise NotAcceptedError(
                f"{NAME}: no operation has a mode that writes its gradients to the host (writes_host): "
                "--set gradients=copied needs none"
            )
        return {"copied": [False], "direct": [True], "auto": [False, True] if able else [False]}[
            self.settings.gradients
        ]

    def _iterations(self) -> Iterator[tuple[list[Run], bool]]:
        """Yield the runs of an iteration, and whether layers are recomputed."""
        graph = self.problem.graph
        if self.settings.activations != "checkpoint":
            yield early_updates(graph, in_default_mode(range(len(graph.operations)))), False
        if self.settings.activations != "keep":
            try:
                layers = training_layers(NAME, graph)
                yield layer_runs(layers, always_kept(layers)).runs, True
            except NotAcceptedError:
                if self.settings.activations == "checkpoint":
                    raise
