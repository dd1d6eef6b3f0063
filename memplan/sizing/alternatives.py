"""Other ways to train with a batch: rows of `plan size`, each with its memory and speed.

    as it is, gradient checkpointing, 8-bit optimizer    PyTorch's own loop
    a plan with recomputation, offloading, updates on
    the host                                             memplan's, all within one memory
    offloaded checkpoints, first layers, shares of
    updates, pages                                       other projects', as a plan in the same memory

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
from .at_once import AS_IT_IS
from .eight_bit import NAMES
from .estimate_range import Span
from .loops import Loop, Loops, planned_span
from .question import Room
from .trial import Solve, minimum_of

CHECKPOINTS, RECOMPUTATION, OFFLOADING, HOST_UPDATES = "layer-checkpoint", "search", "joint", "zero-offload"
"""Solvers of the rows, unless the user names another for plans: each answers in seconds."""

GRADIENT_CHECKPOINTING = "gradient checkpointing"

BY_HAND = {
    "offloaded checkpoints": ("checkpoint-offload", "transformers, Unsloth: inputs of layers on the host"),
    "first layers offloaded": ("activation-offload", "Megatron-LM, NeMo: their activations on the host"),
    "a share of updates on the host": ("optimizer-offload", "torchao, Megatron-LM, NeMo"),
    "a paged optimizer": ("paged-optimizer", "bitsandbytes: states on the host, updates on the GPU"),
}
"""Rows of what people set by hand in other projects: the solver, and a note."""

OF_UPDATES = ("optimizer-offload", "paged-optimizer")
"""Solvers of these that need an optimizer."""

FIXED = (CHECKPOINTS, *(solver for solver, _note in BY_HAND.values()))
"""Solvers of rows for which no `--solver` of the user stands in."""

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
    loops: Loops, batch: int, optimizer: str | None, solver: Solver, machine: Machine, room: Room
) -> NextSteps:
    """Return the rows of a batch. optimizer: its name, None without. machine: with a device of any size."""
    rows = _Rows(loops, batch, solver, machine, room.constant)
    graph = loops.planned(batch).graph
    layers = rows.schedule(CHECKPOINTS, machine, graph, all_bytes(graph))
    layers = None if isinstance(layers, str) else layers
    within = _memory_of_plans(graph, layers, machine, room.planned)
    return NextSteps(batch, within + room.constant, tuple(rows.all(optimizer, layers, within, room.planned)))


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
        yield self._row(AS_IT_IS, ordinary, baseline_schedule(ordinary.graph), self.machine)
        note, most = "torch.utils.checkpoint around each layer", all_bytes(ordinary.graph)
        found = self.schedule(CHECKPOINTS, self.machine, ordinary.graph, most)
        yield self._row(GRADIENT_CHECKPOINTING, ordinary, found, self.machine, note=note)
        if optimizer in NAMES:
            small = self.loops.eight_bit(self.batch)
            note = f"bitsandbytes; --optimizer {optimizer}8bit plans with it"
            yield self._row("8-bit optimizer", small, baseline_schedule(small.graph), self.machine, note=note)
        alone = replace(self.machine, links=Links())
        yield self._recomputation(planned, alone, layers, within)
        if not offloads(self.machine):
            yield Alternative("a plan with offloading", "the machine has no links to the host")
            return
        found = self.schedule(OFFLOADING, self.machine, planned.graph, within)
        yield self._row("a plan with offloading", planned, found, self.machine, within)
        if optimizer is not None:
            # Activations are kept if there is room, or recomputed: what it takes is its own.
            most = min(limit, baseline(planned.graph).peak)
            found = self.schedule(HOST_UPDATES, self.machine, planned.graph, most)
            yield self._row("updates on the host", planned, found, self.machine, most)
        for name, (solver, note) in BY_HAND.items():
            if optimizer is not None or solver not in OF_UPDATES:
                found = self.schedule(solver, self.machine, planned.graph, within)
                yield self._row(name, planned, found, self.machine, within, note=note)

    def schedule(self, solver: str, machine: Machine, graph: Graph, budget: int) -> Schedule | str:
        """Return what a solver finds, or one line why there is nothing."""
        try:
            found = self.solver(solver, machine)(graph, budget)
        except MemplanError as error:
            return str(error)
        return "no plan found in a moment" if found is None else found

    def _recomputation(self, loop: Loop, alone: Machine, layers: Schedule | None, within: int) -> Alternative:
        """Return the row of the solver's plan, or of layers' checkpoints if they fit and it found nothing."""
        name, found = "a plan with recomputation", self.schedule(RECOMPUTATION, alone, loop.graph, within)
        if not isinstance(found, str) or layers is None:
            return self._row(name, loop, found, alone, within)
        if figures_of(loop.graph, layers, machine=self.machine).least_budget > within:
            return Alternative(name, found)
        return self._row(
            name, loop, found=layers, machine=self.machine, budget=within, note=f"around each layer: {found}"
        )

    def _row(
        self,
        name: str,
        loop: Loop,
        found: Schedule | str,
        machine: Machine,
        budget: int | None = None,
        note: str = "",
    ) -> Alternative:
        """Return the row of a schedule, or of why there is none. budget: of a plan, else None."""
        if isinstance(found, str):
            return Alternative(name, found)
        if budget is None:
            span = self.loops.span(loop, found, self.constant)
        else:
            span = planned_span(loop, found, budget, machine, self.constant)
        last = figures_of(loop.graph, found, budget=budget, machine=machine).time
        seconds = last + earlier_seconds(loop.graph, found, budget, machine)
        return Alternative(name, note, span, seconds, self._samples)

    @property
    def _samples(self) -> int:
        return self.loops.steps(self.batch) * self.batch


def _memory_of_plans(graph: Graph, layers: Schedule | None, machine: Machine, limit: int) -> int:
    """Return the bytes for plans: what a checkpoint around each layer takes, if the limit allows that."""
    if layers is None:  # half way down
        least = minimum_of(graph, replace(machine, links=Links()))
        return min(limit, (baseline(graph).peak + least) // 2)
    return min(limit, figures_of(graph, layers, machine=machine).least_budget)


def all_bytes(graph: Graph) -> int:
    """Return bytes that every schedule fits in that keeps no two copies of a tensor."""
    return 2 * int(graph.tensors.bytes.sum()) + int(graph.operations.workspace.max(initial=0))
