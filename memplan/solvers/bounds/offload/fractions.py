"""Fractional answers of the offloading program, what it keeps, transfers and recomputes, to guide searches.

Nothing here is proven; the program is that of the bound (program.py), with few moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....graphs.transformations.order import in_order
from ...clock import Clock
from ...milp.result import BackendError
from ...milp.safe_bounds import relaxed
from .columns import OffloadColumns
from .offload_bound import able_operations, chosen_marks
from .program import offload_program

MOMENTS = (8, 4)
"""Numbers of moments to try, fewer if that takes too long.

With 4 searches end farther from the bound, with 16 no nearer (benchmarks/results/).
"""

_PACE = 8_000
"""Columns of a program that is solved in a second, about."""

_SHARE = 0.7
"""Share of the time that is left, for one program."""

_OPERATIONS = 1_500
"""Operations that are worth a second of the time limit: writing the program takes time as well."""


class Fractions(NamedTuple):
    """An answer of the offloading program in fractions.

    moments: per moment the position in the order of what begins or ends there; below 0 at the iteration's
        start.
    there: shape (moments, tensors), the share of each tensor that is on the device; NaN if the program has
        no variable for it.
    below: likewise, the share that lies in a memory below the device.
    on_cpu: per position the share of the operation there that runs on the CPU.
    """

    moments: list[int]
    there: Floats
    below: Floats
    on_cpu: Floats


def fractions(
    graph: Graph,
    order: Sequence[int],
    machine: Machine,
    budget: int,
    seconds: float,
    cancelled: Callable[[], bool] = lambda: False,
) -> Fractions | None:
    """Solve the offloading program in fractions, for first runs in this order of all operations.

    Returns None if the program has no answer, or none in so many seconds. Raises KeyboardInterrupt.

    budget: bytes on the device.
    """
    if len(order) > _OPERATIONS * seconds:
        return None
    # The program takes traced order: positions in `order` become operations.
    clock, graph = Clock(seconds, cancelled), in_order(graph, order)
    able = able_operations(graph)
    for most in MOMENTS:
        program = offload_program(graph, machine, budget, chosen_marks(graph, able, most, "file"))
        left = clock.left
        if program.model.columns > _PACE * left:
            continue
        try:
            answer = relaxed(program.model.program(), _SHARE * left, cancelled)
        except BackendError:
            return None
        if answer.interrupted:
            raise KeyboardInterrupt
        if cancelled():
            return None
        if clock.left > (1 - _SHARE) * left:  # it was not halted
            return None if answer.x is None else _read(program, answer.x)
    return None


def _read(columns: OffloadColumns, x: Floats) -> Fractions:
    tensors, moments = len(columns.sizes), len(columns.windows)
    there, below = np.full((moments, tensors), np.nan), np.full((moments, tensors), np.nan)
    for s in columns.windows:
        for tensor, column in columns.there[s].items():
            there[s, tensor] = x[column]
        # What the moment's operation touches is on the device without a variable.
        there[s, list(columns.touched[s])] = 1.0
        for tensor, column in columns.below[s].items():
            below[s, tensor] = x[column]

    on_cpu = [
        columns.chosen(o, columns.numbers(o, lambda variant: variant.on_host)).value(x)
        if len(variants) > 1
        else 0.0
        for o, variants in enumerate(columns.variants)
    ]
    stands = columns.stands
    return Fractions(columns.iteration.at, there[:, stands], below[:, stands], np.array(on_cpu))
