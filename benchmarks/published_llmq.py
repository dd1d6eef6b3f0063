"""The technique of LLM.Q: what waits in host memory comes for its use, updates on the GPU included.

No solver of memplan does the same: `zero-infinity` updates on the CPU. Settings, after its flags:

    recompute   block (--recompute-block, or --recompute-ffn with --recompute-att) or none
    weights     --shard-weights --offload-master: each layer's weights come while the layer before it runs
    residual    --offload-residual: the inputs of recomputed layers
    gradients   --offload-gradients: sums of gradients, between the additions of two micro-batches

States (--offload-opt-m --offload-opt-v) always wait there, and come while the update before theirs runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Machine, Memory
from memplan.planner.residency.prefetch_placement import simulate_residency
from memplan.planner.residency.residency import Residency, TensorUse
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.schedule.sequence import Run, in_default_mode, prune
from memplan.sizing.accumulation import is_sum
from memplan.solvers.offloading.layers.offload_intervals import uses_of
from memplan.solvers.recomputation.checkpointing.layer_checkpoint import numbered, runs


def llmq(graph: Graph, machine: Machine, budget: int, flags: Mapping[str, str]) -> Schedule:
    """Return the schedule of an iteration with these flags."""
    block = flags["recompute"] == "block"
    order = prune(graph, list(runs(graph))) if block else in_default_mode(range(len(graph.operations)))
    starts = list(_sections(graph, order))
    section = (np.searchsorted(starts, range(len(order)), "right") - 1).tolist()
    leaves: dict[TensorUse, int] = {}
    slots: dict[TensorUse, int] = {}
    moved = _moved(graph, flags)
    for x, uses in uses_of(graph, order)[0].items():
        if x not in moved:
            continue
        # A resident tensor's first use follows its last, in the iteration before.
        around = [(uses[-1], uses[0])] if graph.resident[x] else []
        for use, following in [*pairwise(uses), *around]:
            if use < following and section[use] == section[following]:
                continue
            leaves[x, use] = Memory.HOST
            ahead = starts[max(section[following] - 1, 0)]
            if ahead > use or following <= use:
                slots[x, following] = ahead
    found = simulate_residency(graph, machine, budget, Residency(order, leaves, prefetch_slots=slots))
    if found is None:
        raise ValueError("the schedule breaks a rule")
    return found[0]


def _moved(graph: Graph, flags: Mapping[str, str]) -> set[int]:
    """Return the tensors that the flags move."""
    kind, sums = graph.tensors.kind, is_sum(graph)
    moved = set[int](np.flatnonzero((kind == Kind.OPTIMIZER_STATE) & ~sums).tolist())
    if flags.get("gradients") == "host":
        moved |= set(np.flatnonzero(sums).tolist())
    if flags.get("weights") == "host":
        weights = np.flatnonzero(kind == Kind.PARAMETER).tolist()
        moved |= {x for x in weights if numbered(graph.tensors.layer[x])}
    if flags.get("residual") == "host" and flags["recompute"] == "block":
        moved |= {x for x in _inputs(graph) if kind[x] == Kind.ACTIVATION}
    return moved


def _inputs(graph: Graph) -> set[int]:
    """Return the activations that a layer of forward takes from the layer before it."""
    layers = [numbered(path) for path in graph.operations.layer]
    forward = [o for o in range(len(layers)) if graph.operations.phase[o] == Phase.FORWARD]
    made = {x: layers[o] for o in forward for x in graph.operations.writes[o].tolist()}
    return {
        x for o in forward for x in graph.input_lists[o] if layers[o] and made.get(x, layers[o]) != layers[o]
    }


def _sections(graph: Graph, order: list[Run]) -> Iterator[int]:
    """Yield the positions at which the layer changes; each update is a section of its own."""
    before = None
    for position, (operation, _mode) in enumerate(order):
        update = graph.operations.phase[operation] == Phase.UPDATE
        now = (numbered(graph.operations.layer[operation]), operation if update else -1)
        if now != before:
            yield position
        before = now
