"""The graph of a part of a program (updates/parts.py), with the costs of the whole's operations; only
those that the whole has not are measured.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ...graphs.graph import Graph
from ..below_autograd import as_traced
from ..measuring.measure import Measurement
from ..measuring.synthetic_inputs import SyntheticInputs, signature
from ..program.graph import Cost, graph_of
from ..program.program import Program
from ..updates.parts import Part
from .profile import costs_of, measured_call


def graph_of_part(part: Part, whole: Program, graph: Graph) -> Graph:
    """Build the graph of a part, with costs from the whole's graph.

    whole: the program of which it is a part.
    graph: of the whole.
    """
    sizes: list[int] = graph.tensors.bytes.tolist()
    storages = [one._replace(bytes=size) for one, size in zip(part.program.storages, sizes, strict=True)]
    program = replace(part.program, storages=storages)
    stand_ins = SyntheticInputs(program, {})
    known: dict[Hashable, Measurement] = {}
    costs: list[Cost] = []
    with as_traced(program.device):
        for operation, place in zip(program.operations, part.places, strict=True):
            if operation.call is whole.operations[place].call:
                costs.append(_cost(graph, place))
            else:
                key = signature(program, operation.call)
                if key not in known:
                    known[key] = measured_call(program, operation, stand_ins)
                costs += costs_of(replace(program, operations=[operation]), [known[key]])
            stand_ins.advance(run=False)
    return graph_of(program, costs, name=graph.name, source=graph.source)


def _cost(graph: Graph, operation: int) -> Cost:
    one = graph.operation(operation)
    host = one.modes[0] if one.modes else None
    if host is None:
        return Cost(one.time, one.workspace, launch_seconds=one.launch)
    return Cost(one.time, one.workspace, host.time, host.workspace, one.launch)
