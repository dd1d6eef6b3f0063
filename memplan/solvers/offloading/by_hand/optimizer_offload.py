"""Optimizer states of a share of the parameters on the host, which updates these parameters.

The other parameters are updated on the device. Nothing else moves but the gradients, to the host, and the
updated weights, back. Of the parameters in their order the first are chosen, until they have the share
`fraction`; by default as few as the budget needs.

| `manner` | gradients leave | updates on the CPU |
|---|---|---|
| torchao | during backward, once each is complete | in that order; parameters below 16 KiB never |
| megatron | after backward | in the order of the parameters |

Where this is kinder than the projects:

- Both keep a second copy of the gradients on the device until `zero_grad`; here they leave
  (torchao's `offload_gradients=True`).
- Both wait for all updated weights before forward begins. Here a layer waits for its own.
- torchao's copies in both directions take turns on one stream.

Reference: torchao, `CPUOffloadOptimizer`; Megatron-LM and NeMo, `HybridDeviceOptimizer` of
`--optimizer-cpu-offload`, `--optimizer-offload-fraction`.

Linear in the edges, plus for each policy the logarithm of the updates in simulations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Memory
from ....planner.bounds import time_bound
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ...candidates import require_backward
from ...links import linked_machine
from ...problem import NotAcceptedError, Options, Problem, SolverResult
from ...settings import SolverSettings, setting
from ..layers.early_updates import movable_updates
from ..layers.fewest import Policy, counts_of, fastest_of_fewest
from ..layers.host_variants import variants_on_host
from ..layers.offload_intervals import uses_of
from .activations import activations_setting, runs_by_activations

NAME = "optimizer-offload"

TORCHAO, MEGATRON = "torchao", "megatron"

SMALLEST = 4096 * 4
"""Bytes of the 4,096 elements in float32 below which torchao updates a parameter on the device."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of optimizer-offload."""

    fraction: float | None = setting(
        None,
        "share of the parameters' bytes updated on the CPU; by default as little as fits",
        least=0,
        most=1,
    )
    manner: str = setting(
        "auto",
        "torchao: gradients leave during backward; megatron: after it; auto: what is faster",
        words=("auto", TORCHAO, MEGATRON),
    )
    activations: str = activations_setting()


@dataclass(frozen=True)
class _Update:
    """An update that can run on the CPU after all else. run: its variant there."""

    run: Run
    weights: tuple[int, ...]
    gradients: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class _Iteration:
    """The runs of an iteration with all updates on the device, and those that can run on the CPU.

    updates: in the order of their parameters.
    """

    graph: Graph
    runs: Sequence[Run]
    updates: Sequence[_Update]
    manner: str

    def residency(self, count: int) -> Residency:
        """Return the decisions with the first `count` updates on the CPU."""
        chosen = list(self.updates[:count])
        hosted = {update.run[0] for update in chosen}
        others = [run for run in self.runs if run[0] not in hosted]
        if self.manner == TORCHAO:
            complete = self._completions(others)
            chosen.sort(key=lambda update: max((complete.get(x, -1) for x in update.gradients), default=-1))
        runs = [*others, *(update.run for update in chosen)]
        device = uses_of(self.graph, runs)[0]
        offloaded: dict[TensorUse, int] = {}
        leave: dict[TensorUse, int] = {}
        back: dict[TensorUse, int] = {}
        for position, update in enumerate(chosen, len(others)):
            for x in update.gradients:
                if x in device:
                    offloaded[x, device[x][-1]] = Memory.HOST
                    if self.manner == MEGATRON:
                        leave[x, device[x][-1]] = len(others)
            # A slot after the use is in the iteration before: the weight comes back once it is updated.
            back |= {(x, device[x][0]): position + 1 for x in update.weights if x in device}
        return Residency(runs, offloaded, offload_slots=leave, prefetch_slots=back)

    def _completions(self, runs: Sequence[Run]) -> dict[int, int]:
        """Return per tensor the position of its last producer."""
        return {
            x: position
            for position, (operation, mode) in enumerate(runs)
            for x, _bit in self.graph.contributions(operation, mode)
        }


def solve(problem: Problem, options: Options) -> SolverResult:
    settings, graph, clock = options.chosen(Settings), problem.graph, options.clock()
    machine = linked_machine(NAME, problem, "gradients and updated weights").machine
    require_backward(NAME, graph)
    updates = list(_updates(graph))
    if not updates:
        raise NotAcceptedError(f"{NAME} updates weights on the CPU; no update of {graph.name} can run there")
    policies: list[Policy] = []
    for activations, runs in runs_by_activations(graph, settings.activations):
        for manner in (TORCHAO, MEGATRON) if settings.manner == "auto" else (settings.manner,):
            smallest = SMALLEST if manner == TORCHAO else 0
            large = [update for update in updates if update.size >= smallest] or updates
            iteration = _Iteration(graph, runs, large, manner)
            requested = _requested(graph, large, settings.fraction)
            counts = counts_of(f"{NAME}: updates", requested, len(large))
            policies.append(Policy(f"{manner}, activations: {activations}", counts, iteration.residency))
    found = fastest_of_fewest(NAME, problem, machine, policies, clock)
    options.report(f"{NAME}: {found.count} of {len(updates)} updates on the CPU, {found.policy.name}")
    return SolverResult.of_heuristic(found.schedule, clock, time_bound(graph))


def _requested(graph: Graph, updates: Sequence[_Update], fraction: float | None) -> int | None:
    """Return the number of updates that have the share of all parameters that change."""
    if fraction is None:
        return None
    trained = (graph.tensors.kind == Kind.PARAMETER) & (graph.mutators.counts() > 0)
    wanted = fraction * int(graph.tensors.bytes[trained].sum())
    # As Megatron: one more while the share is not reached.
    before = accumulate((update.size for update in updates), initial=0)
    return sum(size < wanted for size, _update in zip(before, updates, strict=False))


def _updates(graph: Graph) -> Iterator[_Update]:
    """Yield the updates that can run on the CPU after all other operations, in the order of parameters.

    That is the order in which forward first uses them.
    """
    movable, found = movable_updates(graph), list[_Update]()
    sizes, kind = graph.tensors.bytes, graph.tensors.kind
    for operation in np.flatnonzero(graph.operations.phase == Phase.UPDATE).tolist():
        variants = variants_on_host(graph, operation)
        weights = tuple(x for x in graph.mutate_lists[operation] if kind[x] == Kind.PARAMETER)
        if not (variants and weights and operation in movable) or graph.operations.random[operation]:
            continue
        changed = {*graph.mutate_lists[operation]}
        read = [x for x in graph.read_lists[operation] if x not in changed]
        if any(later > operation for x in read for later in graph.mutators[x].tolist()):
            continue  # put last, it would read what another has changed by then
        gradients = tuple(x for x in read if not graph.resident[x])
        size = int(sizes[list(weights)].sum())
        found.append(_Update((operation, min(variants)[1]), weights, gradients, size))
    first: dict[int, int] = {}
    for operation, inputs in enumerate(graph.input_lists):
        for x in inputs:
            first.setdefault(x, operation)
    yield from sorted(found, key=lambda update: min(first[x] for x in update.weights))
