"""Optimizer states of 8 bits, as bitsandbytes keeps them, in the graph of an optimizer with larger ones.

`--optimizer adamw8bit` traces the update itself (updates/eight_bit.py); this compares without a second trace.

A weight of at least SMALLEST elements has a byte per element in each state, and a scale of four bytes per
block of BLOCK elements; a smaller one has float32 states. The update's time goes by the bytes that it reads
and writes.

Reference: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022, arXiv:2110.02861;
Optimizer2State of bitsandbytes 0.44 and later (blocks of 256; 2,048 before). The two tables of 256 numbers
that all weights share are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..graphs.graph import Graph, Kind, Phase

SMALLEST, BLOCK = 4096, 256
NAMES = ("adam", "adamw", "lion")
"""Planned optimizers that bitsandbytes has with states of 8 bits."""
FLOAT32 = 4


def state_bytes(elements: int) -> int:
    """Return the bytes of one state of a weight."""
    if elements < SMALLEST:
        return FLOAT32 * elements
    return elements + FLOAT32 * -(-elements // BLOCK)


def with_eight_bit_states(graph: Graph, elements: Mapping[int, int], block_bytes: int) -> Graph:
    """Return the graph with states of 8 bits.

    elements: per optimizer state the elements of its weight; a sum of gradients is no such state.
    block_bytes: size of which the device allocates whole multiples.
    """
    sizes = graph.tensors.bytes.copy()
    for x, count in elements.items():
        if graph.tensors.kind[x] == Kind.OPTIMIZER_STATE:
            sizes[x] = -(-state_bytes(count) // block_bytes) * block_bytes
    time, operations = graph.operations.time.copy(), graph.operations
    for row in np.flatnonzero(operations.phase == Phase.UPDATE).tolist():
        # What is only read moves once, what is changed twice: weight and states.
        once, twice = graph.read_lists[row], graph.mutate_lists[row]
        moved = [int(size[once].sum() + 2 * size[twice].sum()) for size in (sizes, graph.tensors.bytes)]
        time[row] *= moved[0] / moved[1] if moved[1] else 1.0
    return replace(
        graph, tensors=replace(graph.tensors, bytes=sizes), operations=replace(operations, time=time)
    )
