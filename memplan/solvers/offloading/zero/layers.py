"""The rules shared by ZeRO-Offload and ZeRO-Infinity: gradients and optimizer states of layers on the CPU.

Ren et al., "ZeRO-Offload" (USENIX ATC 2021, arXiv:2101.06840); Rajbhandari et al., "ZeRO-Infinity" (SC 2021,
doi:10.1145/3458817.3476205), on one device, without the delayed update that changes what is learnt. Gradients
go to the host as they are produced, all updates run on the CPU after the backward part, and a fixed rule says
what happens to activations: kept, recomputed inside layers from the layers' inputs, or that with the inputs
in host memory.

The updates keep the order of the parameters: the first waits for the last gradient, so none overlaps
backward. What the simulator does not know is the barrier between iterations: a layer's forward starts once
its own weights are back, in the real systems once all are. So these baselines come out faster than they
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ....graphs.machine import Memory
from ....planner.residency.residency import Residency, TensorUse
from ...settings import setting
from ..layers.offload_intervals import (
    Uses,
    activation_intervals,
    gradient_intervals,
    state_intervals,
    weight_intervals,
)
from ..layers.runs import LayerRuns, all_kept, always_kept, layer_runs
from ..layers.training import TrainingLayers

ACTIVATIONS = ("keep", "recompute", "offload")


def activations_setting() -> str:
    """Declare the setting of what becomes of activations."""
    return setting(
        "auto",
        "recompute: inside layers; offload: that, with the layers' inputs on the host; auto: the first of "
        "keep, recompute and offload that fits",
        words=("auto", *ACTIVATIONS),
    )


def activation_rules(chosen: str) -> tuple[str, ...]:
    """Return the rules to try in order; `auto` for all of them, those that cost least time first."""
    return ACTIVATIONS if chosen == "auto" else (chosen,)


def zero_residency(
    layers: TrainingLayers, rule: str, states: Memory, weights: Memory | None, ahead: bool
) -> Residency:
    """Return the decisions of the ZeRO rules as a residency.

    rule: of ACTIVATIONS. states, weights: the memory in which they are; weights None: on the device.
    ahead: what a layer needs is on its way while the layer before it runs; else just before its use.
    """
    graph = layers.graph
    kept = (all_kept if rule == "keep" else always_kept)(layers)
    plan = layer_runs(layers, kept, host=True, after=True)
    uses = Uses(graph, plan)
    offloaded = gradient_intervals(layers.gradients, uses.device) | state_intervals(layers, uses, states)
    if weights is not None:
        offloaded |= weight_intervals(layers, uses, weights, before_update=weights)
    if rule == "offload":
        outputs = [layer.output for layer in layers.layers if layer.output is not None]
        offloaded |= activation_intervals(uses, dict.fromkeys(outputs, Memory.HOST))
    back = dict(_one_layer_ahead(uses, plan, offloaded)) if ahead else {}
    # On the device, but changed on the CPU: each comes back once it is updated.
    if weights is None:
        back |= dict(_behind_updates(layers, uses))
    return Residency(plan.runs, offloaded, prefetch_slots=back)


def _behind_updates(layers: TrainingLayers, uses: Uses) -> Iterator[tuple[TensorUse, int]]:
    """Yield (use, slot) of weights updated on the CPU: each is fetched right after its update.

    That is in the iteration before the weight's first use.
    """
    for x in layers.weights:
        if x in uses.host and x in uses.device:
            yield (x, uses.device[x][0]), uses.host[x][-1] + 1


def _one_layer_ahead(
    uses: Uses, plan: LayerRuns, offloaded: dict[TensorUse, Memory]
) -> Iterator[tuple[TensorUse, int]]:
    """Yield (use, slot) of each first use after an interval that ends in a later section.

    The slot is the start of the section before the use.
    """
    for x in dict.fromkeys(x for x, _position in offloaded):
        for last, first in pairwise(uses.device.get(x, ())):
            section = plan.section(first)
            # Last used in the section before: it could not leave and be back in time, so it has no slot.
            if (x, last) in offloaded and plan.section(last) < section - 1:
                yield (x, first), plan.starts[section - 1]
