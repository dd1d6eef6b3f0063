"""The graph of a program from that of one of the same structure, for other sizes (program/structure.py).

Calls that both have cost the same: updates of weights, mostly. Each other distinct call runs twice, on the
synthetic inputs with which forms of results are found (trace/output_layouts.py): once for its time, once for
its memory. Bytes are as exact as measured ones; times are those of a single run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from ...graphs.graph import Graph
from ..device.choice import device_of
from ..measuring.live_bytes import live_peak
from ..measuring.measure import Measurement
from ..measuring.synthetic_inputs import SyntheticInputs
from ..program.program import Program
from ..storage.blocks import size_bytes
from ..trace.layouts import call_key, results_of, traced_forms
from .profile import graph_from


class Samples:
    """Costs of distinct calls from two runs of each.

    like: a program with another's graph, whose calls need not run once more.
    """

    def __init__(self, like: Program) -> None:
        self._like = like
        self._found: dict[Hashable, Measurement] = {}

    def knows(self, program: Program, place: int) -> bool:
        """Tell whether an operation is in the other program too, with results of the same forms."""
        if place >= len(self._like.operations):
            return False
        one, other = program.operations[place].call, self._like.operations[place].call
        same = call_key(program, one) == call_key(self._like, other)
        return same and traced_forms(program, one) == traced_forms(self._like, other)

    def run(self, program: Program, inputs: SyntheticInputs, call: Callable[[], Any]) -> Any:
        """Run the call of the operation at which the inputs are and return its result; note what it costs."""
        device = device_of(program.device)
        result, seconds = device.once(call)
        del result
        peak, _left, result = live_peak(call, device)
        worst = (live_peak(other, device).peak_bytes for other in inputs.calls_by_data())
        sizes = [size_bytes(x, program.device) if isinstance(x, Tensor) else 0 for x in results_of(result)]
        found = Measurement(seconds, 0.0, max((peak, *worst)), tuple(sizes))
        self._found[call_key(program, inputs.operation.call)] = found
        return result

    def graph(self, program: Program, like: Program, graph: Graph) -> Graph | None:
        """Build the program's graph; None if a call was not run.

        like: a program of the same structure.
        graph: its graph.
        """
        measured: list[Measurement] = []
        for place, (one, other) in enumerate(zip(program.operations, like.operations, strict=True)):
            key = call_key(program, one.call)
            if key == call_key(like, other.call):
                measured.append(_measured(graph, place, like, other.call.outputs))
            elif key in self._found and not graph.operation(place).modes:
                measured.append(self._found[key]._replace(launch=graph.operation(place).launch))
            else:
                return None
        return graph_from(program, measured)


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
