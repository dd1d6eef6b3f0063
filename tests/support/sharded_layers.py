"""Layers of sharded training whose gathers and scatters are operations of a queue of their own."""

from __future__ import annotations

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Phase


def gathered_layers(depth: int, gather: float, compute: float, share: int = 1) -> Graph:
    """Layers whose weights are gathered, whose gradients are scattered, and that are updated at once.

    A share of a weight has `share` bytes, a weight 4, an activation 2. A layer's backward takes twice as long
    as its forward.
    """
    draft = Draft("gathered layers")
    batch = draft.tensor("batch", 1, Kind.INPUT)
    shares = [draft.tensor(f"w{k}", share, Kind.PARAMETER) for k in range(depth)]
    x, kept = batch, list[tuple[int, int]]()
    for k in range(depth):
        full, made = draft.tensor(f"full{k}", 4), draft.tensor(f"x{k}", 2)
        draft.operation(f"G{k}", time=gather, reads=[shares[k]], writes=[full], on_comm=True)
        draft.operation(f"F{k}", time=compute, reads=[x, full], writes=[made])
        kept.append((x, full))
        x = made
    for k in reversed(range(depth)):
        before, full = kept[k]
        dx, dw = draft.tensor(f"dx{k}", 2, Kind.GRADIENT), draft.tensor(f"dw{k}", 4, Kind.GRADIENT)
        scattered = draft.tensor(f"dw{k}.share", 1, Kind.PARAMETER_GRADIENT)
        phase = Phase.BACKWARD
        draft.operation(f"B{k}", time=2 * compute, reads=[x, before, full], writes=[dx, dw], phase=phase)
        draft.operation(f"R{k}", time=gather, reads=[dw], writes=[scattered], phase=phase, on_comm=True)
        draft.operation(
            f"U{k}", time=0.0, reads=[scattered], mutates=[shares[k]], phase=Phase.UPDATE, recompute=False
        )
        x = dx
    return draft.graph()
