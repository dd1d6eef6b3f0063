"""What `plan size` looks for: which batches fit a GPU, and how little memory the first of them needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..graphs.errors import InputError, MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..graphs.machines.presets import Preset
from ..graphs.units import format_bytes
from ..planner.schedule.schedule import Schedule
from ..planner.sizing import Trial, given_batches, largest_batch, smallest_budget, trial
from ..solvers.problem import InfeasibleError, Problem
from ..solvers.registry import run as registry

if TYPE_CHECKING:
    from ..runtime.model.file import ModelFile
    from ..runtime.updates.optimizers import Choice

_STARTS = (1, 2, 4, 8)
"""Where the search for the largest batch may start: batch normalisation, say, takes no single sample."""


@dataclass(frozen=True)
class Model:
    """The graphs of a model, batch by batch. optimizer: whose updates they have, if any."""

    file: ModelFile
    preset: Preset
    optimizer: Choice | None
    report: Callable[[str], None]

    def graph(self, batch: int) -> Graph:
        """Raises MemplanError, one line, where the model can't have that batch."""
        from ..runtime.profile.estimate import estimate_file

        self.report(f"batch {batch:,}: tracing")
        try:
            return estimate_file(self.file, self.preset, batch=batch, optimizer=self.optimizer)
        except MemplanError as error:
            raise InputError(f"batch {batch:,}: {error}") from error


@dataclass(frozen=True)
class Question:
    """To the solver. Called with a graph and a budget, it gives a schedule, or None where it finds none."""

    solver: str
    time_limit: float
    settings: dict[str, str]
    machine: Machine
    report: Callable[[str], None]

    @cached_property
    def any_size(self) -> Machine:
        """The machine with a device as large as the budget says."""
        return replace(self.machine, device_capacity=None)

    def __call__(self, graph: Graph, budget: int) -> Schedule | None:
        problem = Problem(graph, budget, self.any_size)
        self.report(f"{self.solver}: {graph.name} within {format_bytes(budget)}")
        with suppress(InfeasibleError):
            found = registry.solve(self.solver, problem, self.time_limit, self.settings, self.report, 0.0)
            if found.interrupted:
                raise KeyboardInterrupt
            return found.schedule
        return None


@dataclass
class Found:
    """trials: at the GPU's limit, batch by batch. least: of the first batch. interrupted: there is more.
    pinning: of the smallest batch that does not fit, where it would if more host memory could be pinned.
    pinned: bytes that can be."""

    limit: int
    trials: list[Trial]
    least: Trial | None = None
    interrupted: bool = False
    pinning: Trial | None = None
    pinned: int | None = None

    @property
    def largest(self) -> Trial | None:
        return max((one for one in self.trials if one.figures), key=lambda one: one.batch, default=None)

    @property
    def fastest(self) -> Trial | None:
        """The one to train with: of most samples a second, the smallest of equals."""
        rates = {one.batch: one.samples_per_second or 0.0 for one in self.trials}
        there = (one for one in self.trials if one.figures)
        return max(there, key=lambda one: (rates[one.batch], -one.batch), default=None)


def sizes_of(model: Model, ask: Question, limit: int, batches: list[int] | None) -> Found:
    """limit: device bytes. batches: to try, None: search. Raises MemplanError, one line."""
    sizes = Found(limit, [])
    try:
        first, graph = _first(model, batches)

        def attempt(batch: int, ask: Question = ask) -> Trial:
            return trial(graph if batch == first else model.graph(batch), ask.any_size, batch, limit, ask)

        tried = given_batches(attempt, batches) if batches else largest_batch(attempt, first)
        sizes.trials.extend(tried)
        start = sizes.trials[0]
        if not start.figures:
            start = trial(graph, ask.any_size, first, start.plain.peak, ask)
        if start.figures:
            for better in smallest_budget(graph, ask.any_size, start, ask):
                sizes.least = better
        refused = [one.batch for one in sizes.trials if not (one.figures or one.hopeless)]
        if refused and ask.machine.pinned is not None:
            found = attempt(min(refused), replace(ask, machine=replace(ask.machine, pinned=None)))
            sizes.pinning, sizes.pinned = found if found.figures else None, ask.machine.pinned
    except KeyboardInterrupt:
        sizes.interrupted = True
    return sizes


def _first(model: Model, batches: list[int] | None) -> tuple[int, Graph]:
    """The smallest batch to try, with its graph. Raises MemplanError, that of the first try."""
    starts = [min(batches)] if batches else _STARTS
    refusals: list[MemplanError] = []
    for batch in starts:
        try:
            return batch, model.graph(batch)
        except MemplanError as error:
            refusals.append(error)
    raise refusals[0]
