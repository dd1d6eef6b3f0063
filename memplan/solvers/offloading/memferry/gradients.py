"""GO-MemFerry (section IV-D): gradients that the operations of backward write into host memory themselves.

A layer here is the gradients that operations make together, as for weights (layers.py). Its operations write
all of these in host memory, in modes that do just that, or none.

If gradients are produced on the device and copied, none saves more than another: as many bytes as may stay
do. In the paper's MemFerry all buffers stay.

| paper           | here                                                                 |
|-----------------|----------------------------------------------------------------------|
| T_CBP(i)        | seconds of the layer's operations, gradients on the device           |
| T_GBP(i)        | seconds of the same in their modes that write the gradients below    |
| T_GBP - T_CBP   | `gain`: what keeping the gradients on the device saves               |
| S_req           | `reserve`, as a share of the bytes of all gradients                  |
| D, P^GO         | `kept_gradients`: the layers that are kept; all others are written   |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from ....graphs.graph import Graph, Kind
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from .layers import groups, variant


@dataclass(frozen=True)
class GradientLayer:
    """Gradients that operations produce together.

    gradients: tensors. size: their bytes. producers: the operations that produce them.
    direct: each of these has a variant that writes them to the host. gain: seconds, 0 without such
    variants.
    """

    gradients: tuple[int, ...]
    size: int
    producers: tuple[int, ...]
    direct: bool
    gain: float


def gradient_layers(graph: Graph) -> list[GradientLayer]:
    """Return the layers of gradients, in the order of their first producers."""
    made = {
        o: row
        for o, written in enumerate(graph.operations.writes.lists())
        if (row := [x for x in written if graph.tensors.kind[x] == Kind.PARAMETER_GRADIENT])
    }
    group = groups(made.values())
    producers: dict[int, list[int]] = {}
    for operation, row in made.items():
        producers.setdefault(group[row[0]], []).append(operation)
    return [
        _layer(graph, tuple(dict.fromkeys(x for o in members for x in made[o])), tuple(members))
        for members in producers.values()
    ]


def _layer(graph: Graph, gradients: tuple[int, ...], producers: tuple[int, ...]) -> GradientLayer:
    default = [(o, DEFAULT_MODE) for o in producers]
    variants = [variant for run in default if (variant := written_below(graph, run, gradients))]
    # All producers or none: contributions to one gradient can't be in two memories.
    direct = len(variants) == len(default)
    gain = sum(graph.seconds(*run) for run in variants) - sum(graph.seconds(*run) for run in default)
    size = int(graph.tensors.bytes[list(gradients)].sum())
    return GradientLayer(gradients, size, producers, direct, gain if direct else 0.0)


def written_below(graph: Graph, run: Run, gradients: Collection[int]) -> Run | None:
    """Return the same run with those of these gradients that it produces, and nothing else, written in host
    memory.

    The fastest such variant is taken; None if there is none.
    """
    operation, mode = run
    # Modes count from 1; 0 is the baseline variant, which reads nothing there.
    reads = graph.operations.modes[operation][mode - 1].reads_host if mode else ()
    made = {x for x, _bit in graph.contributions(operation, mode)}
    return variant(graph, run, set(reads), made.intersection(gradients))


def kept_layers(layers: Sequence[GradientLayer], reserve: float, *, direct: bool) -> list[GradientLayer]:
    """Return the layers whose gradients stay on the device.

    reserve: share of all gradients' bytes. direct: the others are written to the host, not copied.
    """
    sizes = [layer.size for layer in layers]
    gains = [layer.gain if direct else float(layer.size) for layer in layers]
    chosen = kept_gradients(sizes, gains, int(reserve * sum(sizes)))
    return [layers[i] for i in chosen]


def kept_gradients(sizes: Sequence[int], gains: Sequence[float], room: int, units: int = 2000) -> list[int]:
    """Choose the gradients to keep on the device (GO-MemFerry): indices, of at most `room` bytes together.

    A knapsack, solved exactly by the paper's program D[i, j] = max(D[i-1, j], D[i-1, j - s_i] + gain_i). A
    gain (T_GBP - T_CBP, the seconds that a kept gradient saves) may be negative; such a gradient is never
    kept. units: the room is divided into at most so many; sizes are exact if they have a divisor that large,
    else rounded up. O(n · units).
    """
    if room <= 0 or not sizes:
        return []
    # Bytes of a column.
    unit = max(gcd(*sizes), -(-room // units), 1)
    whole = room // unit
    table = np.zeros((len(sizes) + 1, whole + 1))
    for row, (size, gain) in enumerate(zip(sizes, gains, strict=True), start=1):
        table[row] = table[row - 1]
        # Rounded up, so that the kept gradients never exceed the room.
        slots = -(-size // unit)
        if slots <= whole:
            with_it = table[row - 1, : whole + 1 - slots] + gain
            table[row, slots:] = np.maximum(table[row, slots:], with_it)
    kept: list[int] = []
    left = whole
    for row in range(len(sizes), 0, -1):
        # Strictly: a gradient that gains nothing is not worth its memory.
        if table[row, left] > table[row - 1, left]:
            kept.append(row - 1)
            left -= -(-sizes[row - 1] // unit)
    return kept[::-1]
