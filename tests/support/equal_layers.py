"""Equal numbered layers with weights, gradients and optimizer states: closed forms hold for them."""

from __future__ import annotations

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine

MiB = 2**20
LAYERS = 6

FORWARD, BACKWARD, LOSS, UPDATE, HOST = 1.0, 2.0, 0.5, 0.125, 0.25
"""Seconds: of a layer, of the loss, of an update on the device and on the CPU."""

WEIGHT, STATES, SAVED = MiB, 2 * MiB, 3 * MiB
"""Bytes: of a weight and its gradient, of its states, of what a layer saves."""


def network(*, host: bool = True) -> Graph:
    """All updates come after backward, in the order of the layers. host: they have variants on the CPU."""
    draft = Draft("equal layers")
    x = draft.tensor("batch", MiB, Kind.INPUT)
    weights = [draft.tensor(f"layers.{k}.weight", WEIGHT, Kind.PARAMETER) for k in range(LAYERS)]
    states = [draft.tensor(f"s{k}", STATES, Kind.OPTIMIZER_STATE) for k in range(LAYERS)]
    saved: list[int] = []
    for k, weight in enumerate(weights):
        saved.append(draft.tensor(f"h{k}", SAVED))
        out = draft.tensor(f"x{k}", 1)
        draft.operation(
            f"F{k}", time=FORWARD, reads=[x, weight], writes=[saved[-1], out], layer=f"layers.{k}"
        )
        x = out
    gradient = draft.tensor("g", 1, Kind.GRADIENT)
    draft.operation("loss", time=LOSS, reads=[x], writes=[gradient], phase=Phase.LOSS, recompute=False)
    gradients = [draft.tensor(f"dw{k}", WEIGHT, Kind.PARAMETER_GRADIENT) for k in range(LAYERS)]
    for k in reversed(range(LAYERS)):
        below = [draft.tensor(f"g{k}", 1, Kind.GRADIENT)] if k else []
        draft.operation(
            f"B{k}",
            time=BACKWARD,
            reads=[gradient, saved[k], weights[k]],
            writes=[*below, gradients[k]],
            layer=f"layers.{k}",
            phase=Phase.BACKWARD,
        )
        gradient = below[0] if below else gradient
    for k in range(LAYERS):
        draft.operation(
            f"U{k}",
            time=UPDATE,
            reads=[gradients[k]],
            mutates=[weights[k], states[k]],
            phase=Phase.UPDATE,
            recompute=False,
            modes=[Mode("host", HOST, 0, (), on_host=True)] if host else [],
        )
    return draft.graph([])


def machine(seconds: float) -> Machine:
    """A machine whose links take so long for a MiB."""
    return Machine(links=Links(d2h=MiB / seconds, h2d=MiB / seconds))
