"""Graphs whose operations have one output each, as Checkmate and MOCCASIN model them, to and from memplan's.

Their model: a node needs its inputs and memory for its output while it runs, any node may be recomputed,
nothing need be resident at the end. Times are whole numbers of some unit. What else a graph of memplan says
can't be expressed there: `nodes_of` lists it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from sys import float_info
from typing import Any, NamedTuple

import numpy as np

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.graph import Graph, Kind, Phase
from .formats import Options
from .pickles import text_of

NANOSECOND = 1e-9


class Node(NamedTuple):
    """An operation with one output.

    time: in the file's unit.
    size: bytes of its output.
    reads: nodes, by their index in the list.
    """

    name: str
    time: float
    size: int
    reads: Sequence[int]
    backward: bool = False


def graph_of_nodes(
    name: str, nodes: Sequence[Node], options: Options, source: Mapping[str, Any], fixed_bytes: int = 0
) -> Graph:
    """Return the graph of nodes in a topological order.

    fixed_bytes: bytes that are always on the device.
    A unit of time is a second unless the options say otherwise. Raises ValueError for two nodes of one name.
    """
    draft, unit = Draft(name), options.time_unit or 1.0
    outputs = [
        draft.tensor(f"{node.name}.out", node.size, Kind.GRADIENT if node.backward else Kind.ACTIVATION)
        for node in nodes
    ]
    if fixed_bytes:
        draft.tensor(FIXED, fixed_bytes, Kind.BUFFER)
    known: set[str] = set()
    for output, node in zip(outputs, nodes, strict=True):
        if node.name in known:
            raise ValueError(f"two nodes have the name {node.name!r}")
        known.add(node.name)
        draft.operation(
            node.name,
            time=node.time * unit,
            reads=sorted(outputs[read] for read in set(node.reads)),
            writes=[output],
            phase=Phase.BACKWARD if node.backward else Phase.FORWARD,
        )
    return draft.graph(source={**source, "time_unit": unit})


FIXED = "fixed"
"""Name of the tensor in imported graphs that stands for the bytes that are always on the device."""


def nodes_of(graph: Graph, options: Options) -> tuple[list[Node], list[str]]:
    """Return a node per operation, with times in whole units, and what is lost thereby, a line each.

    An operation's outputs count as one, a tensor with several contributions at the first of them; inputs and
    persistent tensors are left out. The unit is a second if all times are whole seconds, else a nanosecond,
    unless the options name one.
    """
    operations = graph.operations
    unit = options.time_unit or unit_of(graph)
    producers = graph.producers.lists()
    nodes: list[Node] = []
    for index, name in enumerate(operations.name):
        written: list[int] = operations.writes[index].tolist()
        made = [tensor for tensor in written if producers[tensor][0] == index]
        # A later contribution adds to the memory of the earlier ones, and so needs them.
        before = {other for tensor in written for other in producers[tensor] if other < index}
        needed = {other for tensor in graph.input_lists[index] for other in producers[tensor]}
        size = int(graph.tensors.bytes[made].sum())
        # Updates count as backward: that model has no third phase.
        backward = operations.phase.item(index) >= Phase.BACKWARD
        time = round(operations.time.item(index) / unit)
        nodes.append(Node(name, time, size, sorted((before | needed) - {index}), backward))
    return nodes, [
        f"{count:,} {what}"
        for count, what in (
            (
                int((operations.writes.counts() > 1).sum()),
                "operations with several outputs (they count as one)",
            ),
            (int((operations.writes.counts() == 0).sum()), "operations without an output (of 0 bytes there)"),
            (int((graph.producers.counts() > 1).sum()), "tensors that are sums of contributions"),
            (int((operations.mutates.counts() > 0).sum()), "operations that change tensors in place"),
            (int((operations.workspace > 0).sum()), "operations with a workspace"),
            (int((operations.launch > 0).sum()), "launch times"),
            (int((~operations.recompute).sum()), "operations that may run only once"),
            (int(operations.random.sum()), "operations that draw random numbers"),
            (len(operations.modes), "operations with modes"),
            (len(graph.tensors.spread), "tensors that are spread over ranks"),
            (len(graph.results), "results that stay to the end"),
        )
        if count
    ]


def fixed_bytes(graph: Graph) -> int:
    """Return the bytes that are always on the device without transfers: inputs and persistent tensors."""
    return graph.resident_bytes


def unit_of(graph: Graph) -> float:
    """Return the coarser of a second and a nanosecond in which all times are whole."""
    times = graph.operations.time
    return 1.0 if bool((times == np.floor(times)).all()) else NANOSECOND


def refuse_losses(name: str, lost: Collection[str], options: Options) -> None:
    """Raise InputError if something is lost and the options do not allow it."""
    if lost and not options.lossy:
        raise InputError(f"{name} has no place for: {'; '.join(lost)}. --lossy writes the rest")


def whole(value: object, what: str) -> int:
    """Validate a number of bytes. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{what} must be a whole number, not negative, below 2⁶³, not {text_of(value)}")
    return value


def amount(value: object, what: str) -> float:
    """Validate a number of time units. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= float_info.max:
        raise ValueError(f"{what} must be a finite number, not negative, not {text_of(value)}")
    return float(value)
