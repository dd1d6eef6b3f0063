"""Checkpoints around layers whose inputs wait in host memory.

Each layer is checkpointed, as by layer-checkpoint. What a layer is recomputed from leaves for the host after
its last use in forward, and comes back when the layer is recomputed. So forward leaves nothing of a layer on
the device.

Nothing is minimised but the layers that are offloaded: the last layers stay, as many as the budget allows, as
backward begins with them. `layers=` sets the number; the projects offload all.

Where this is kinder than the projects:

- Their copies down wait for computations, and these for copies. Here both run at a time.
- A tensor that all layers read, like the rotary embeddings, is copied once, not once a layer.

`ahead=N` fetches a layer's inputs when backward recomputes the N-th layer before it, as projects do that copy
on a stream of their own.

Reference: transformers, `activation_checkpointing_enable(offload=True)`; accelerate and FSDP2,
`CheckpointWrapper` with `offload_wrapper`; Unsloth, `Unsloth_Offloaded_Gradient_Checkpointer`.

Linear in the edges, plus the logarithm of the layers in simulations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Memory
from ....planner.bounds import time_bound
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run, prune
from ...candidates import require_backward
from ...links import linked_machine, worth_moving
from ...problem import Options, Problem, SolverResult
from ...recomputation.checkpointing.layer_checkpoint import numbered, runs
from ...settings import SolverSettings, setting
from ..layers.fewest import Policy, counts_of, fastest_of_fewest
from ..layers.offload_intervals import Positions, uses_of

NAME = "checkpoint-offload"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of checkpoint-offload."""

    layers: int | None = setting(None, "layers whose inputs are offloaded; by default as few as fit", least=0)
    ahead: int = setting(0, "layers by which inputs are fetched before their layer is recomputed", least=0)


@dataclass(frozen=True)
class _Checkpoints:
    """The runs of an iteration with checkpoints.

    recomputed: per layer the position of its first repeated run, in the order of backward.
    inputs: per layer the tensors that its repeated runs read and that another layer has made.
    uses: per tensor the positions of its runs.
    """

    runs: list[Run]
    recomputed: dict[str, int]
    inputs: dict[str, list[int]]
    uses: Positions

    def residency(self, offloaded: int, ahead: int) -> Residency:
        """Return the decisions with the inputs of so many layers offloaded: those that backward runs last."""
        layers, starts = list(self.recomputed), list(self.recomputed.values())
        leaves: dict[TensorUse, int] = {}
        slots: dict[TensorUse, int] = {}
        for number in range(len(layers) - offloaded, len(layers)):
            for x in self.inputs[layers[number]]:
                following = next(p for p in self.uses[x] if p >= starts[number])
                before = self.uses[x][self.uses[x].index(following) - 1]
                if before < starts[0]:  # else an earlier layer of backward has brought it back
                    leaves[x, before] = Memory.HOST
                    slots[x, following] = starts[max(number - ahead, 0)]
        return Residency(self.runs, leaves, prefetch_slots=slots)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings, graph, clock = options.chosen(Settings), problem.graph, options.clock()
    machine = linked_machine(NAME, problem, "inputs of checkpointed layers", (Kind.ACTIVATION,)).machine
    require_backward(NAME, graph)
    checkpoints = _checkpoints(graph, worth_moving(machine))
    counts = counts_of(f"{NAME}: layers", settings.layers, len(checkpoints.recomputed))
    policy = Policy("checkpoints", counts, partial(checkpoints.residency, ahead=settings.ahead))
    found = fastest_of_fewest(NAME, problem, machine, [policy], clock)
    options.report(f"{NAME}: inputs of {found.count} of {len(checkpoints.recomputed)} layers on the host")
    return SolverResult.of_heuristic(found.schedule, clock, time_bound(graph))


def _checkpoints(graph: Graph, smallest: int) -> _Checkpoints:
    """Return the checkpoints around the layers of a graph, and their inputs of at least `smallest` bytes.

    Raises NotAcceptedError if no layer has a number.
    """
    ordered = prune(graph, list(runs(graph)))
    recomputed: dict[str, int] = {}
    reads: dict[str, set[int]] = defaultdict(set)
    made: dict[int, str] = {}
    seen: set[int] = set()
    for position, (operation, _mode) in enumerate(ordered):
        layer = numbered(graph.operations.layer[operation])
        if operation in seen:
            recomputed.setdefault(layer, position)
            reads[layer].update(graph.input_lists[operation])
        elif graph.operations.phase[operation] < Phase.LOSS:
            made |= dict.fromkeys(graph.operations.writes[operation].tolist(), layer)
        seen.add(operation)
    inputs = {
        layer: sorted(
            x
            for x in reads[layer]
            if made.get(x, layer) != layer
            and graph.tensors.kind[x] == Kind.ACTIVATION
            and graph.tensors.bytes[x] >= smallest
        )
        for layer in recomputed
    }
    return _Checkpoints(ordered, recomputed, inputs, uses_of(graph, ordered)[0])
