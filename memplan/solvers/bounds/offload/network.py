"""Seconds that the network between ranks is busy in every schedule: a lower bound in closed form.

An update makes the full copy of its weight stale, so a weight that is used on the device is gathered once an
iteration, and a gradient that an update uses is scattered once. Take any operation t. A weight that is used
before t and after t in every order, but not by t, is gathered twice if it is not on the device while t runs;
one that never changes, once. While t runs, what t touches and the shares of weights and states are there too:

    room = limit − shares − inputs, outputs and workspace of t − the batch
    T ≥ Σ_w seconds + Σ_dw seconds + Σ_{w around t} seconds of w − most that fit into the room, in fractions

The best t is mostly the loss, or the operation with most bytes near it: that it needs much memory is why
weights are gathered twice. That much is what the offloading program (program.py) says with t as a moment.

Around the loss the network has none of these to do (network_idle.py).

Holds for any order and any recomputation. O(moments · edges).

Developed for memplan.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from ....graphs.graph import Graph, Phase
from ....graphs.machine import Machine
from ....graphs.outward import float_below, sum_below
from ....planner.simulator.footprint import Footprint
from ..residency.order import AFTER, BEFORE, any_order, predecessors
from .network_idle import NetworkIdle
from .variants import BoundVariant, variants_of

MOMENTS = 24
"""Operations that are tried: those that need most bytes."""


def network_bound(graph: Graph, machine: Machine, limit: int) -> float:
    """Compute the bound in seconds; 0 without spread tensors. limit: bytes on the device."""
    peers, spread = machine.links.peers, graph.tensors.spread
    if peers is None or not spread:
        return 0.0
    sizes: list[int] = graph.tensors.bytes.tolist()
    used = {x: _uses(graph, x) for x in sorted(spread)}
    # Persistent: a weight, which is gathered; else a gradient.
    links = {x: peers if graph.persistent[x] else peers.scatters for x in used}
    passing = {x: links[x].seconds_added(sizes[x]) for x in used}
    weights = [x for x in used if graph.persistent[x] and used[x]]
    gradients = [x for x in used if not graph.persistent[x] and len(used[x]) < len(graph.users[x])]
    # A weight that no update changes may stay gathered for ever: nothing per iteration.
    once = [passing[x] for x in (*(x for x in weights if len(graph.mutators[x])), *gradients)]
    shares = Footprint(graph, machine.hierarchy).shares
    room = limit - sum(shares[x] for x in used if graph.persistent[x])
    room -= sum(sizes[x] for x in np.flatnonzero(graph.resident & ~graph.persistent).tolist())
    before = predecessors(graph)
    idle = NetworkIdle(graph, before, used, passing)
    moments, best = any_order(before), max(sum_below(once), idle.bound)
    for t, need in _largest(graph, sizes):
        side = moments(t).side
        around = [
            x
            for x in weights
            # A weight that t uses is there anyway, and counts in `need`.
            if t not in used[x]
            and any(side[o] == BEFORE for o in used[x])
            and any(side[o] == AFTER for o in used[x])
        ]
        left = _left_over([(passing[x], sizes[x]) for x in around], max(0, room - need))
        best = max(best, sum_below([*once, *left, *idle.seconds_of(t)]))
    return best


def _uses(graph: Graph, x: int) -> list[int]:
    """Return the operations that use a tensor on the device."""
    return [o for o in graph.users[x].tolist() if graph.operations.phase[o] != Phase.UPDATE]


def _largest(graph: Graph, sizes: list[int]) -> Iterable[tuple[int, int]]:
    """Return operations with the bytes that they need besides the batch, the largest first."""

    def need(variant: BoundVariant) -> int:
        touched = variant.device | variant.writes
        return variant.workspace + sum(
            sizes[x] for x in touched if graph.persistent[x] or not graph.resident[x]
        )

    needs = [(o, min(map(need, variants_of(graph, o)))) for o in range(len(graph.operations))]
    return sorted(needs, key=lambda each: -each[1])[:MOMENTS]


def _left_over(items: list[tuple[float, int]], room: int) -> list[float]:
    """Return the seconds of what does not fit, so that they are fewest in all. items: seconds and bytes."""
    left: list[float] = []
    # The knapsack in fractions: most seconds per byte stay, so what is left is a lower bound.
    for seconds, size in sorted(items, key=lambda item: -item[0] / max(1, item[1])):
        if size <= room:
            room -= size
            continue
        # Exact, then rounded down: a bound must not gain by rounding.
        left.append(float_below(Fraction(seconds) * (1 - Fraction(room, size))))
        room = 0
    return left
