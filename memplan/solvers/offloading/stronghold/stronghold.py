"""STRONGHOLD: a working window of layers moves over the device, forward and back.

Minimises m, the layers in the window, under P1, P2 and (3): transfers and CPU updates are hidden by
computations, and the window fits within S_avail. If no window hides all, the largest that fits is taken.
Assumed: a chain of layers; weights are fetched one layer ahead of the window and leave after it, gradients
go to the host, where the CPU updates the weights alongside backward; the first window's layers stay on
the device and are updated there.

Reference: X. Sun et al., STRONGHOLD: fast and affordable billion-scale deep learning model training, SC22,
doi:10.1109/SC41404.2022.00076.

The paper's symbols, and where we differ from the print: terms.py.

    terms.py      begin here: the terms of P1, P2 and (3), and the size that follows
    schedule.py   the window at every run, as runs and offload intervals

The analytic model is not a proof: transfers share their links first in first out, a computation waits for
memory as well, and the model's memory is a sum of maxima. So the simulator validates: windows that do not fit
after all are made smaller. `windows = simulated` tries up to 32 sizes and takes the fastest. Activations
stay (keep), or only each layer's output does and the layer is recomputed (checkpoint, as in the paper's
evaluation); auto tries both. The disk (III-G) holds what is out of the window if that is requested, or if
the host is too small; the model's terms do not know of it, as in the paper. Complexity: terms.py, and one
simulation for each size tried.

Not here: several streams (IV-A), as a machine has one queue of computations, whose work is one batch's; and
several optimizers (III-E1) beyond what the seconds of an update's mode on the host say, measured on all
cores: the CPU is one queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....graphs.errors import InputError, MemplanError
from ....graphs.graph import Kind, Phase
from ....graphs.machine import Machine, Memory
from ....planner.bounds import time_bound
from ....planner.residency.prefetch_placement import simulate_residency
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import Run
from ....planner.simulator.simulate import Figures
from ...candidates import device_limit, peak_without
from ...links import LinkedMachine, linked_machine
from ...problem import Options, Problem, SolverResult
from ...settings import SolverSettings, setting
from ..layers.cpu_updates import STATES, states_memory
from ..layers.refusals import refused
from ..layers.runs import LayerRuns, all_kept, always_kept, layer_runs
from ..layers.training import Layer, TrainingLayers, training_layers
from .schedule import window_residency
from .terms import LayerFigures, Window, working_window

NAME = "stronghold"

_TRIED = 32
"""Window sizes that are simulated at most."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of stronghold."""

    windows: str = setting("analytic", "analytic: P1 and P2", words=("analytic", "simulated"))
    window: int = setting(0, "layers, for this size and no other; 0: as `windows` says", least=0)
    activations: str = setting("auto", "what becomes of activations", words=("auto", "keep", "checkpoint"))
    call_seconds: float = setting(0.0, "seconds of an asynchronous call, t_async", least=0)
    states: str = setting(
        "auto",
        "where what is out of the window lies; auto: on the disk, if there is one and the host is too small",
        words=STATES,
    )


@dataclass(frozen=True)
class _WindowResult:
    schedule: Schedule
    figures: Figures
    window: Window
    size: int
    layers: int
    checkpoint: bool
    states: Memory

    def line(self) -> str:
        status = self.window.overlap if self.size == self.window.size else "a size tried"
        repeated = ", layers recomputed" if self.checkpoint else ""
        elsewhere = ", the others on the disk" if self.states == Memory.DISK else ""
        return (
            f"a window of {self.size} of {self.layers} layers ({status}{repeated}{elsewhere}): "
            f"{self.figures.time:.6g} s simulated, "
            f"{self.window.seconds:.6g} s by P1 and P2 were all hidden"
        )


def solve(problem: Problem, options: Options) -> SolverResult:
    settings = options.chosen(Settings)
    linked = linked_machine(NAME, problem, "weights", (Kind.PARAMETER,))
    layers = training_layers(NAME, problem.graph)
    if settings.window > len(layers.layers):
        raise InputError(f"window must be at most the {len(layers.layers)} layers, not {settings.window}")
    search = _WindowSearch(problem, linked, layers, settings, options)
    with search.clock.until_interrupted():
        for states in search.memories:
            for checkpoint in search.checkpoint_choices():
                # The disk is slower than the host: not tried once a window fits with the host.
                if search.best is None or search.best.states == states:
                    search.search(checkpoint, states)
    if search.best is None:
        search.clock.raise_if_interrupted()
        raise search.refused()
    options.report(search.best.line())
    return SolverResult.of_heuristic(search.best.schedule, search.clock, time_bound(problem.graph))


class _WindowSearch:
    """A search over window sizes.

    best: the fastest found within the budget. memories: where what is out of the window may be, tried in
    order until something fits.
    """

    def __init__(
        self,
        problem: Problem,
        linked: LinkedMachine,
        layers: TrainingLayers,
        settings: Settings,
        options: Options,
    ) -> None:
        self.problem, self.linked, self.layers, self.settings = problem, linked, layers, settings
        self.limit = device_limit(problem)
        self.memories = _memories(settings.states, linked.machine, layers)
        self.best: _WindowResult | None = None
        self.clock = options.clock()

    def checkpoint_choices(self) -> list[bool]:
        return {"auto": [False, True], "keep": [False], "checkpoint": [True]}[self.settings.activations]

    def search(self, checkpoint: bool, states: Memory) -> None:
        plan = self._plan(checkpoint)
        figures = layer_figures(self.layers, plan, self.linked)
        room = room_for_windows(self.layers, plan.runs, self.limit)
        window = working_window(figures, room, self.settings.call_seconds)
        # Analytic: from the model's size down, and the first that fits is the answer.
        for size in self._sizes(window):
            # The time limit waits for the first window that fits, or for the proof that none does.
            if self.best is not None and self.clock.expired:
                return
            residency = window_residency(self.layers, plan, size, states)
            found = simulate_residency(self.problem.graph, self.linked.machine, self.limit, residency)
            if found is None:
                continue
            schedule, seen = found
            if self.best is None or seen.time < self.best.figures.time:
                self.best = _WindowResult(
                    schedule=schedule,
                    figures=seen,
                    window=window,
                    size=size,
                    layers=len(figures),
                    checkpoint=checkpoint,
                    states=states,
                )
            if self.settings.windows == "analytic":
                return

    def refused(self) -> MemplanError:
        """Return the error that says why no window of one layer, or of the requested size, fits."""
        size = max(1, self.settings.window)
        smallest = [
            window_residency(self.layers, self._plan(checkpoint), size, states)
            for states in self.memories
            for checkpoint in self.checkpoint_choices()
        ]
        return refused(NAME, self.problem, self.linked.machine, smallest)

    def _plan(self, checkpoint: bool) -> LayerRuns:
        return layer_runs(self.layers, (always_kept if checkpoint else all_kept)(self.layers))

    def _sizes(self, window: Window) -> Iterator[int]:
        if self.settings.window:
            yield self.settings.window
            return
        if self.settings.windows == "analytic":
            # 0: the model, whose memory is a sum of maxima, fits none; the simulator decides on one layer.
            yield from range(max(window.size, 1), 0, -1)
            return
        most = len(self.layers.layers)
        step = -(-most // _TRIED)  # rounded up: at most `_TRIED` sizes
        yield from dict.fromkeys([max(window.size, 1), 1, *range(most, 0, -step)])


def _memories(chosen: str, machine: Machine, layers: TrainingLayers) -> list[Memory]:
    """Return the memories to try for what is out of the window.

    Raises NotAcceptedError if a disk is requested and the machine has none.
    """
    if chosen != "auto":
        return [states_memory(NAME, machine, chosen, layers)]
    with_disk = machine.links.disk_read is not None and machine.links.disk_write is not None
    return [Memory.HOST, Memory.DISK] if with_disk else [Memory.HOST]


def layer_figures(found: TrainingLayers, plan: LayerRuns, linked: LinkedMachine) -> list[LayerFigures]:
    """Return the figures of each layer. A forward run after the first backward one counts as backward."""
    graph = found.graph
    forward, backward = [0.0] * len(found.layers), [0.0] * len(found.layers)
    for position, (operation, mode) in enumerate(plan.runs):
        if graph.operations.phase[operation] != Phase.UPDATE:
            # By position, not phase: a forward operation recomputed in backward costs t_bp.
            seconds = backward if position >= plan.first_backward else forward
            seconds[plan.layer_of[plan.section(position)]] += graph.seconds(operation, mode)
    return [
        _figures(found, layer, before, later, linked)
        for layer, before, later in zip(found.layers, forward, backward, strict=True)
    ]


def room_for_windows(found: TrainingLayers, runs: Sequence[Run], limit: int) -> int:
    """Return the bytes that windows may fill, without states that no window moves.

    That is what the budget leaves besides a run of the whole iteration without any weight, gradient or state:
    activations, inputs, workspace, and what belongs to no layer. States whose updates have no variant on the
    host are not moved.
    """
    moved = [*found.weights, *found.gradients, *found.states]
    fixed = [x for layer in found.layers if found.host_modes(layer.updates) is None for x in layer.states]
    return limit - peak_without(found.graph, runs, moved) - found.size(fixed)


def _figures(
    found: TrainingLayers, layer: Layer, forward: float, backward: float, linked: LinkedMachine
) -> LayerFigures:
    graph = found.graph
    weights, gradients = found.size(layer.weights), found.size(layer.gradients)
    host = found.host_modes(layer.updates)
    return LayerFigures(
        forward=forward,
        backward=backward,
        fetch=linked.h2d.total_seconds(found.sizes(layer.weights)),
        forward_return=linked.d2h.total_seconds(found.sizes(layer.weights)),
        backward_return=linked.d2h.total_seconds(
            # Updated on the device, the weights return; updated by the CPU, only the gradients do.
            found.sizes(layer.weights if host is None else layer.gradients)
        ),
        host_update=None if host is None else sum(graph.seconds(*run) for run in host),
        device_update=found.seconds(layer.updates),
        weights=weights,
        gradients=gradients,
        # Without a CPU update they stay, and `room_for_windows` has subtracted them.
        states=0 if host is None else found.size(layer.states),
    )
