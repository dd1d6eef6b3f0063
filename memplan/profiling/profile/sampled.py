"""The graph of a program from that of another, mostly of the same structure for other sizes
(program/structure.py).

Calls that both have cost the same: updates of weights, mostly. Products of matrices follow from each other
(`product_key`). Each other distinct call runs on the synthetic inputs with which forms of results are found
(tracing/output_layouts.py): once for its memory and its time, or a short one a second time for its time
alone. Bytes are as exact as measured ones; times are those of a single run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from ...devices.device.choice import device_of
from ...devices.device.device import StreamDevice
from ...devices.measuring.live_bytes import live_peak
from ...devices.measuring.measure import Measurement
from ...devices.measuring.synthetic_inputs import SyntheticInputs
from ...devices.storage.blocks import size_bytes
from ...graphs.graph import Graph
from ...program.program import Call, Program, Value, values_read
from ...tracing.layouts import call_key, results_of, traced_forms
from .profile import graph_from

SHORT_SECONDS = 0.001
"""A shorter run is timed without the count of its memory, which takes about 10 µs per allocation."""


class Samples:
    """Costs of the calls of a program: those of a program that was measured, or of two runs of each.

    like: the program whose calls need not run once more.
    graph: its graph.
    """

    def __init__(self, like: Program, graph: Graph) -> None:
        self._like, self._graph = like, graph
        self._found: dict[Hashable, Measurement] = {}
        self._places: dict[Hashable, int] = {}
        self._products: dict[Hashable, int] = {}
        for place, operation in enumerate(like.operations):
            self._places.setdefault(call_key(like, operation.call), place)
            key, costs = product_key(like, operation.call), graph.operation(place)
            if key is not None and costs.workspace == 0 and not costs.modes:
                self._products.setdefault(key, place)

    def knows(self, program: Program, place: int) -> bool:
        """Tell whether the other program has a call with results of the same forms, or one from which this
        operation's cost follows.
        """
        call = program.operations[place].call
        there = self._places.get(call_key(program, call))
        if there is None:
            return product_key(program, call) in self._products
        return traced_forms(program, call) == traced_forms(self._like, self._like.operations[there].call)

    def run(self, program: Program, inputs: SyntheticInputs, call: Callable[[], Any]) -> Any:
        """Run the call of the operation at which the inputs are and return its result; note what it costs."""
        device = device_of(program.device)
        if isinstance(device, StreamDevice):
            call()  # what a library sets up once, like cuBLAS its workspace, belongs to no call
        peak, _left, (result, seconds) = live_peak(partial(device.once, call), device)
        if seconds < SHORT_SECONDS:
            del result  # else the memory of two would be held
            result, seconds = device.once(call)
        worst = (live_peak(other, device).peak_bytes for other in inputs.calls_by_data())
        sizes = [size_bytes(x, program.device) if isinstance(x, Tensor) else 0 for x in results_of(result)]
        found = Measurement(seconds, 0.0, max((peak, *worst)), tuple(sizes))
        self._found[call_key(program, inputs.operation.call)] = found
        return result

    def graph(self, program: Program, *, same_structure: bool) -> Graph | None:
        """Build a program's graph; None if a call was not run.

        same_structure: the program has the other's structure.
        """
        measured: list[Measurement] = []
        for place, operation in enumerate(program.operations):
            twin = place if same_structure else None
            found = self._of(program, operation.call, twin)
            if found is None:
                return None
            measured.append(found)
        return graph_from(program, measured)

    def _of(self, program: Program, call: Call, twin: int | None) -> Measurement | None:
        """Return what a call costs.

        twin: place of the same operation in the other program, if it is known.
        """
        key = call_key(program, call)
        there = self._places.get(key)
        if twin is not None and call_key(self._like, self._like.operations[twin].call) == key:
            there = twin
        if there is not None:
            return _measured(self._graph, there, self._like, self._like.operations[there].call.outputs)
        costs = None if twin is None else self._graph.operation(twin)
        if costs is not None and costs.modes:
            return None  # it may run on the host, for which it was not measured
        if key in self._found:
            return self._found[key]._replace(launch=0.0 if costs is None else costs.launch)
        return self._product(program, call, twin)

    def _product(self, program: Program, call: Call, twin: int | None) -> Measurement | None:
        """Return the cost of a product that follows from one in the other program."""
        key = product_key(program, call)
        there = self._products.get(key)
        if there is None:
            return None
        if twin is not None and product_key(self._like, self._like.operations[twin].call) == key:
            there = twin
        costs, other = self._graph.operation(there), self._like.operations[there].call
        made = (None if x is None else program.values[x].storage for x in call.outputs)
        sizes = tuple(0 if storage is None else program.storages[storage].bytes for storage in made)
        more = multiplications(program, call) / multiplications(self._like, other)
        return Measurement(costs.time * more, 0.0, sum(sizes), sizes, launch=costs.launch)


def _measured(graph: Graph, place: int, program: Program, outputs: Sequence[int | None]) -> Measurement:
    """Return what was measured of an operation of a graph."""
    one, sizes = graph.operation(place), graph.tensors.bytes
    made = tuple(0 if x is None else int(sizes[program.values[x].storage]) for x in outputs)
    found = Measurement(
        one.time, 0.0, one.workspace + sum(int(sizes[x]) for x in one.writes), made, launch=one.launch
    )
    if not one.modes:
        return found
    return found._replace(host_seconds=one.modes[0].time, host_bytes=one.modes[0].workspace)


# ── products of matrices ─────────────────────────────────────────────────────────────────────────────

aten = torch.ops.aten
_PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
_BY_BLAS = {torch.float32, torch.float64}
"""Others may be brought into another order first, which takes memory."""


def product_key(program: Program, call: Call) -> Hashable:
    """Return what products of matrices with the same layout share, of any sizes; None for other calls.

    They take most of an iteration's time, so not to run them is most of what a derived plan saves. PyTorch's
    kernels for them hand float matrices to BLAS where they lie: forms of the results and the lack of
    workspace depend on how the matrices lie, not on their sizes. Times go with the number of
    multiplications.
    """
    if call.target not in _PRODUCTS:
        return None
    values = _values(program, call)
    if any(value.device.type != "cpu" or value.dtype not in _BY_BLAS for value in values):
        return None
    return call.target, tuple(map(_lie, values))


def multiplications(program: Program, call: Call) -> int:
    """Return how many numbers the product multiplies."""
    *_inputs, right, result = _values(program, call)
    # Elements of the result times the inner dimension.
    return prod(result.shape) * right.shape[-2]


def _values(program: Program, call: Call) -> list[Value]:
    """Return the matrices that are read, in order, and the result."""
    read = [program.values[value] for value in values_read(call)]
    return [*read, *(program.values[value] for value in call.outputs if value is not None)]


def _lie(value: Value) -> Hashable:
    """Return how a tensor lies in memory: which dimension is within which, and which are of one element or
    repeated; strides of those are arbitrary, and kernels look at them.
    """
    dimensions = range(len(value.shape))
    # The outermost dimension first.
    order = tuple(sorted(dimensions, key=lambda one: (-value.strides[one], one)))
    dense, expected = True, 1
    for dimension in reversed(order):
        # Dense: each stride is the product of the sizes within it.
        dense = dense and value.strides[dimension] == expected
        expected *= value.shape[dimension]
    special = tuple((value.shape[one] <= 1, value.strides[one] == 0) for one in dimensions)
    return value.dtype, value.device, order, dense, special
