"""A graph as a plan-graph/1 or 2 document; fields at their default are left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from ..graph import Graph, Kind, Mode, Operation, Phase, Tensors
from .machine import machine_to_document
from .read import FORMAT, SHARDED_FORMAT

_VALUES_AT_A_TIME = 1000


def graph_to_document(graph: Graph) -> dict[str, Any]:
    """Return the document that graph_from_document reads back, column for column."""
    version = SHARDED_FORMAT if graph.communicates else FORMAT
    document: dict[str, Any] = {"format": version, "name": graph.name}
    if graph.source:
        document["source"] = dict(graph.source)
    if graph.machine is not None:
        document["machine"] = machine_to_document(graph.machine)
    for part, rows in rows_of(graph).items():
        document[part] = list(rows)
    return document


def rows_of(graph: Graph) -> dict[str, Iterator[Any]]:
    """Return the parts of a graph that a schedule depends on, as iterators over their rows.

    Iterators, since all rows of a large graph together take much memory.
    """
    names = graph.tensors.name
    return {
        "tensors": _tensor_rows(graph.tensors),
        "operations": _operation_rows(graph),
        "results": (names[tensor] for tensor in graph.results),
    }


# Both go through columns, since a view of each tensor and operation takes several times as long.


def _values(column: NDArray[Any]) -> Iterator[Any]:
    """Yield Python's values of a column, which take several times its bytes: so many at a time."""
    parts = (column[start : start + _VALUES_AT_A_TIME] for start in range(0, len(column), _VALUES_AT_A_TIME))
    return chain.from_iterable(part.tolist() for part in parts)


def _tensor_rows(tensors: Tensors) -> Iterator[dict[str, Any]]:
    words = [kind.word for kind in Kind]
    columns = tensors.name, _values(tensors.bytes), _values(tensors.kind), tensors.layer
    for index, (name, size, kind, layer) in enumerate(zip(*columns, strict=True)):
        row: dict[str, Any] = {"name": name, "bytes": size, "kind": words[kind]}
        if layer is not None:
            row["layer"] = layer
        if index in tensors.spread:
            row["spread"] = True
        if index in tensors.shares:
            row["share"] = tensors.shares[index]
        yield row


def _operation_rows(graph: Graph) -> Iterator[dict[str, Any]]:
    # graph_digest hashes these rows: leaving out other fields changes the digest that schedule files name.
    operations, names, words = graph.operations, graph.tensors.name, [phase.word for phase in Phase]
    columns = operations.phase, operations.time, operations.launch, operations.workspace
    flags = operations.recompute, operations.random
    rows = zip(
        operations.name,
        *map(_values, columns),
        *(operations.reads, operations.writes, operations.mutates),
        *map(_values, flags),
        operations.layer,
        strict=True,
    )
    for index, (name, phase, time, launch, workspace, reads, writes, mutates, *others) in enumerate(rows):
        recompute, random, layer = others
        row: dict[str, Any] = {"name": name, "phase": words[phase], "time": time}
        if launch:
            row["launch"] = launch
        if workspace:
            row["workspace"] = workspace
        row["reads"] = [names[tensor] for tensor in reads]
        row["writes"] = [names[tensor] for tensor in writes]
        if mutates:
            row["mutates"] = [names[tensor] for tensor in mutates]
        if not recompute:
            row["recompute"] = False
        if random:
            row["random"] = True
        if index in operations.comm:
            row["queue"] = "comm"
        if layer is not None:
            row["layer"] = layer
        if index in operations.modes:
            operation = graph.operation(index)
            row["modes"] = {mode.name: _mode_row(operation, mode, names) for mode in operation.modes}
        yield row


def _mode_row(operation: Operation, mode: Mode, names: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if mode.time != operation.time:
        row["time"] = mode.time
    if mode.launch != operation.launch:
        row["launch"] = mode.launch
    if mode.workspace != operation.workspace:
        row["workspace"] = mode.workspace
    if mode.writes != operation.writes:
        row["writes"] = [names[tensor] for tensor in mode.writes]
    if mode.reads_host:
        row["reads_host"] = [names[tensor] for tensor in mode.reads_host]
    if mode.writes_host:
        row["writes_host"] = [names[tensor] for tensor in mode.writes_host]
    if mode.on_host:
        row["on"] = "host"
    return row
