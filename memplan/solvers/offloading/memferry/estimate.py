"""MemFerry's model of an iteration: what a choice of treatments costs, layer by layer.

    link     ▐ fetch 0 ▐ fetch 2 ▐ fetch 1 (DFGB) ▐
    compute  ▐ wait    ▐ F0 ▐ F1 from the host ▐ F2 ▐ … ▐ B2 ▐ B1 ▐ B0 ▐

The link brings the weights of GFGB layers in forward order, then those of DFGB layers in backward order; a
computation waits for its own. Reads of host memory do not slow the link: the paper's assumption, and a
doubtful one, since both go over the same wires. Gradients and updates are the same whatever the treatments,
and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from .layers import Costs


class Treatment(IntEnum):
    """The uses of a layer's weights: how forward and backward each get at them."""

    GFGB = 0
    """on the device, on the device"""
    DHA = 1
    """in host memory, in host memory"""
    DFGB = 2
    """in host memory, on the device"""
    TWICE = 3
    """on the device, offloaded in between, on the device: not the paper's, for weights that don't fit"""


PUBLISHED = (Treatment.GFGB, Treatment.DHA, Treatment.DFGB)

_FETCHED_FIRST = (Treatment.GFGB, Treatment.TWICE)
_FETCHED_LATER = (Treatment.DFGB, Treatment.TWICE)


def forward_estimate(costs: Sequence[Costs], treatments: Sequence[Treatment]) -> tuple[float, float]:
    """Return the seconds until the forward part ends, and until the link is free: T_all, and T_all -
    T_res."""
    # Both clocks run from the iteration's start: line 3's max(T_trans(l), 0) lacks − T_res.
    compute = link = 0.0
    for layer, treatment in zip(costs, treatments, strict=True):
        if treatment in _FETCHED_FIRST:
            link += layer.fetch
            # The link never waits for a computation: weights lie on the host, and memory is not modelled.
            compute = max(compute, link) + layer.forward
        else:
            compute += layer.direct_forward
        compute += layer.between
    return compute, link


def estimate(costs: Sequence[Costs], treatments: Sequence[Treatment]) -> float:
    """Return the seconds of the forward and the backward part."""
    compute, link = forward_estimate(costs, treatments)
    for layer, treatment in zip(reversed(costs), reversed(treatments), strict=True):
        # Before the wait: what runs between two layers doesn't read the weights.
        compute += layer.between_backward
        if treatment in _FETCHED_LATER:
            link += layer.fetch
            compute = max(compute, link)
        compute += layer.direct_backward if treatment == Treatment.DHA else layer.backward
    return compute
