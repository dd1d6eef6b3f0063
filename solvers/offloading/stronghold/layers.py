"""The input of STRONGHOLD's model: the figures of a graph's layers, and the memory that windows may fill.

`room` is what the budget leaves besides a run of the whole iteration without any weight, gradient or state:
activations, inputs, workspace, and what belongs to no layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.graph import Phase
from ....planner.schedule.sequence import Run
from ...candidates import peak_without
from ...links import LinkedMachine
from ..layers.runs import LayerRuns
from ..layers.training import Layer, TrainingLayers
from .terms import LayerFigures


def layer_figures(found: TrainingLayers, plan: LayerRuns, linked: LinkedMachine) -> list[LayerFigures]:
    """Return the figures of each layer. A forward run after the first backward one counts as backward."""
    graph = found.graph
    forward, backward = [0.0] * len(found.layers), [0.0] * len(found.layers)
    for position, (operation, mode) in enumerate(plan.runs):
        if graph.operations.phase[operation] != Phase.UPDATE:
            seconds = backward if position >= plan.first_backward else forward
            seconds[plan.layer_of[plan.section(position)]] += graph.seconds(operation, mode)
    return [
        _figures(found, layer, before, behind, linked)
        for layer, before, behind in zip(found.layers, forward, backward, strict=True)
    ]


def room_for_windows(found: TrainingLayers, runs: Sequence[Run], limit: int) -> int:
    """Return the bytes that windows may fill, without states that no window moves.

    These are the states whose updates have no variant on the host.
    """
    moved = [x for layer in found.layers for x in (*layer.weights, *layer.gradients, *layer.states)]
    fixed = [x for layer in found.layers if found.host_modes(layer.updates) is None for x in layer.states]
    return limit - peak_without(found.graph, runs, moved) - found.size(fixed)


def _figures(
    found: TrainingLayers, layer: Layer, forward: float, backward: float, linked: LinkedMachine
) -> LayerFigures:
    graph = found.graph
    weights, gradients = found.size(layer.weights), found.size(layer.gradients)
    host = found.host_modes(layer.updates)
    return LayerFigures(
        forward,
        backward,
        linked.h2d.total_seconds(found.sizes(layer.weights)),
        linked.d2h.total_seconds(found.sizes(layer.weights)),
        linked.d2h.total_seconds(found.sizes(layer.weights if host is None else layer.gradients)),
        None if host is None else sum(graph.seconds(*run) for run in host),
        found.seconds(layer.updates),
        weights,
        gradients,
        0 if host is None else found.size(layer.states),
    )
