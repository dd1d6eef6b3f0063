"""Activations of the first n layers on the host, from forward to backward.

What a layer saves for its backward leaves after its last use in forward. It comes back while the backward of
the layer `ahead` after it begins. All other layers keep theirs; nothing is recomputed. As few layers leave as
the budget needs; the last one always stays, as in Megatron-LM.

A tensor that several layers' backward reads belongs to the last of them. Where this is kinder: a copy to the
host frees its memory at once, not when a later layer has ended.

Reference: Megatron-LM and NeMo, `cpu_offloading_num_layers`; Transformer Engine, `get_cpu_offload_context`.

Linear in the edges, plus the logarithm of the layers in simulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ....graphs.graph import Graph, Kind, Phase
from ....graphs.machine import Memory
from ....planner.bounds import time_bound
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run, in_default_mode
from ...candidates import require_backward
from ...links import linked_machine, worth_moving
from ...problem import NotAcceptedError, Options, Problem, SolverResult
from ...recomputation.checkpointing.layer_checkpoint import numbered
from ...settings import SolverSettings, setting
from ..layers.fewest import Policy, counts_of, fastest_of_fewest
from ..layers.offload_intervals import Positions, uses_of
from ..layers.runs import first_backward

NAME = "activation-offload"


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of activation-offload."""

    layers: int | None = setting(None, "first layers that offload; by default as few as fit", least=0)
    ahead: int = setting(1, "layers by which activations are fetched before their backward", least=0)


@dataclass(frozen=True)
class _Saved:
    """Activations that layers save.

    layers: in forward order. starts: per layer the position at which its backward begins.
    saved: per layer the tensors. uses: per tensor the positions of its runs. turn: the first of backward.
    """

    runs: Sequence[Run]
    layers: Sequence[str]
    starts: Mapping[str, int]
    saved: Mapping[str, Sequence[int]]
    uses: Positions
    turn: int

    def residency(self, count: int, ahead: int) -> Residency:
        """Return the decisions with the activations of the first `count` layers offloaded."""
        offloaded: dict[TensorUse, int] = {}
        back: dict[TensorUse, int] = {}
        for number, layer in enumerate(self.layers[:count]):
            # Backward runs the layers in reverse: the layer `ahead` after this one comes before it.
            start = self.starts[self.layers[min(number + ahead, len(self.layers) - 1)]]
            for x in self.saved[layer]:
                last = max(p for p in self.uses[x] if p < self.turn)
                following = next(p for p in self.uses[x] if p > last)
                offloaded[x, last] = Memory.HOST
                back[x, following] = min(start, following)
        return Residency(self.runs, offloaded, prefetch_slots=back)


def solve(problem: Problem, options: Options) -> SolverResult:
    settings, graph, clock = options.chosen(Settings), problem.graph, options.clock()
    machine = linked_machine(NAME, problem, "activations", (Kind.ACTIVATION,)).machine
    require_backward(NAME, graph)
    saved = _saved(graph, worth_moving(machine))
    # The last layer's backward follows its forward at once: offloading it gains nothing.
    counts = counts_of(f"{NAME}: layers", settings.layers, len(saved.layers) - 1)
    policy = Policy("activations", counts, partial(saved.residency, ahead=settings.ahead))
    found = fastest_of_fewest(NAME, problem, machine, [policy], clock)
    options.report(f"{NAME}: activations of {found.count} of {len(saved.layers)} layers on the host")
    return SolverResult.of_heuristic(found.schedule, clock, time_bound(graph))


def _saved(graph: Graph, smallest: int) -> _Saved:
    """Return what layers save in tensors of at least `smallest` bytes.

    Raises NotAcceptedError if no layer has a number.
    """
    runs = in_default_mode(range(len(graph.operations)))
    uses, turn = uses_of(graph, runs)[0], first_backward(graph, runs)
    phases = graph.operations.phase
    owners = [numbered(path) for path in graph.operations.layer]
    forward = dict.fromkeys(owners[o] for o in range(turn) if owners[o] and phases[o] == Phase.FORWARD)
    starts: dict[str, int] = {}
    for position in range(turn, len(runs)):
        if phases[position] == Phase.BACKWARD:
            starts.setdefault(owners[position], position)
    layers = [layer for layer in forward if layer in starts]
    if not layers:
        raise NotAcceptedError(f"{NAME} takes graphs of models with numbered layers; {graph.name} has none")
    number = {layer: place for place, layer in enumerate(layers)}
    saved: dict[str, list[int]] = {layer: [] for layer in layers}
    for x, positions in uses.items():
        before = [p for p in positions if p < turn]
        readers = {owners[p] for p in positions if p >= turn}
        # Read by a part without a layer: nobody's, so it stays.
        if not (before and readers and readers <= number.keys()):
            continue
        if graph.tensors.kind[x] == Kind.ACTIVATION and graph.tensors.bytes[x] >= smallest:
            # The last reader's backward is the first to run, so the tensor must be back by then.
            saved[max(readers, key=number.__getitem__)].append(x)
    return _Saved(runs, layers, starts, saved=saved, uses=uses, turn=turn)
