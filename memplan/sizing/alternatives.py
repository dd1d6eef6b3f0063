"""Other ways to train with a batch: rows of `plan size`, each with its memory and speed.

    as it is, gradient checkpointing, 8-bit optimizer    PyTorch's own loop
    a plan with recomputation, offloading, updates on
    the host                                             memplan's, all within one memory

The memory of the plans is what a checkpoint around each layer takes in a plan, if the GPU has as much: so the
rows compare. A row that can't be says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ..graphs.errors import MemplanError
from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine
from ..planner.baseline import baseline, baseline_schedule
from ..planner.bounds import offloads
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import figures_of
from .accumulation import earlier_seconds
from .eight_bit import NAMES
from .estimate_range import Span
from .loops import Loop, Loops, planned_span, unplanned_span
from .trial import Solve, minimum_of

CHECKPOINTS, RECOMPUTATION, OFFLOADING, HOST_UPDATES = "layer-checkpoint", "search", "joint", "zero-offload"
"""Solvers of the rows, unless the user names another for plans: each answers in seconds."""

Solver = Callable[[str, Machine], Solve]
"""A function of a solver's name and a machine: how it is called."""


class Alternative(NamedTuple):
    """One row.

    note: more about it, or why there is none. span: device bytes. seconds, samples: of an update.
    """

    name: str
    note: str = ""
    span: Span | None = None
    seconds: float = 0.0
    samples: int = 0

    @property
    def samples_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds else None


class NextSteps(NamedTuple):
    """The rows of a batch. within: bytes of the plans."""

    batch: int
    within: int
    rows: tuple[Alternative, ...]


def next_steps(
    loops: Loops,
    batch: int,
    optimizer: str | None,
    *,
    solver: Solver,
    machine: Machine,
    limit: int,
    constant: int,
) -> NextSteps:
    """Return the rows of a batch.

    machine: with a device of any size. limit: bytes that plans may take at most. constant: what cuBLAS keeps.
    """
    loop = loops.planned(batch)
    layers = _layer_checkpoints(loop.graph, solver, machine)
    within = _memory_of_plans(loop.graph, layers, machine, limit)
    rows = _Rows(loops, batch, solver, machine, constant)
    return NextSteps(batch, within + constant, tuple(rows.all(optimizer, layers, within, limit)))


class _Rows(NamedTuple):
    loops: Loops
    batch: int
    solver: Solver
    machine: Machine
    constant: int

    def all(
        self, optimizer: str | None, layers: Schedule | None, within: int, limit: int
    ) -> Iterator[Alternative]:
        ordinary, planned = self.loops.ordinary(self.batch), self.loops.planned(self.batch)
        yield self._unplanned("as it is", ordinary, baseline_schedule(ordinary.graph))
        yield self._checkpointing(ordinary)
        if optimizer in NAMES:
            small = self.loops.eight_bit(self.batch)
            note = "bitsandbytes; memplan estimates it and can't run it"
            yield self._unplanned("8-bit optimizer", small, baseline_schedule(small.graph), note)
        alone = replace(self.machine, links=Links())
        found = self._planned("a plan with recomputation", planned, RECOMPUTATION, alone, within)
        yield self._at_least(found, planned, layers, within)
        if not offloads(self.machine):
            yield Alternative("a plan with offloading", "the machine has no links to the host")
            return
        yield self._planned("a plan with offloading", planned, OFFLOADING, self.machine, within)
        if optimizer is not None:
            # Activations are kept if there is room, or recomputed: what it takes is its own.
            most = min(limit, baseline(planned.graph).peak)
            yield self._planned("updates on the host", planned, HOST_UPDATES, self.machine, most)

    def _checkpointing(self, ordinary: Loop) -> Alternative:
        name = "gradient checkpointing"
        try:
            schedule = self.solver(CHECKPOINTS, self.machine)(ordinary.graph, all_bytes(ordinary.graph))
        except MemplanError as error:
            return Alternative(name, str(error))
        if schedule is None:
            return Alternative(name, "not found")
        return self._unplanned(name, ordinary, schedule, "torch.utils.checkpoint around each layer")

    def _unplanned(self, name: str, loop: Loop, schedule: Schedule, note: str = "") -> Alternative:
        seconds = _update_seconds(loop.graph, schedule, None, self.machine)
        return Alternative(name, note, unplanned_span(loop, schedule, self.constant), seconds, self._samples)

    def _planned(self, name: str, loop: Loop, solver: str, machine: Machine, budget: int) -> Alternative:
        try:
            schedule = self.solver(solver, machine)(loop.graph, budget)
        except MemplanError as error:
            return Alternative(name, str(error))
        if schedule is None:
            return Alternative(name, "no plan found in a moment")
        seconds = _update_seconds(loop.graph, schedule, budget, machine)
        span = planned_span(loop, schedule, budget, machine, self.constant)
        return Alternative(name, "", span, seconds, self._samples)

    def _at_least(self, found: Alternative, loop: Loop, layers: Schedule | None, budget: int) -> Alternative:
        """Return the row of layers' checkpoints in a plan if they fit and the solver found nothing."""
        if found.span is not None or layers is None:
            return found
        if figures_of(loop.graph, layers, machine=self.machine).least_budget > budget:
            return found
        span = planned_span(loop, layers, budget, self.machine, self.constant)
        seconds = _update_seconds(loop.graph, layers, budget, self.machine)
        return Alternative(found.name, f"around each layer: {found.note}", span, seconds, self._samples)

    @property
    def _samples(self) -> int:
        return self.loops.steps(self.batch) * self.batch


def _layer_checkpoints(graph: Graph, solver: Solver, machine: Machine) -> Schedule | None:
    try:
        return solver(CHECKPOINTS, machine)(graph, all_bytes(graph))
    except MemplanError:
        return None


def _memory_of_plans(graph: Graph, layers: Schedule | None, machine: Machine, limit: int) -> int:
    """Return the bytes for plans: what a checkpoint around each layer takes, if the limit allows that."""
    if layers is None:  # half way down
        least = minimum_of(graph, replace(machine, links=Links()))
        return min(limit, (baseline(graph).peak + least) // 2)
    return min(limit, figures_of(graph, layers, machine=machine).least_budget)


def all_bytes(graph: Graph) -> int:
    """Return bytes that every schedule fits in that keeps no two copies of a tensor."""
    return 2 * int(graph.tensors.bytes.sum()) + int(graph.operations.workspace.max(initial=0))


def _update_seconds(graph: Graph, schedule: Schedule, budget: int | None, machine: Machine) -> float:
    last = figures_of(graph, schedule, budget=budget, machine=machine).time
    return last + earlier_seconds(graph, schedule, budget, machine)
