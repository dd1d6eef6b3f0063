"""A graph as a plan-graph/1 or 2 document; fields at their default are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..graph import Graph, Mode, Operation
from .machine import machine_to_document
from .read import FORMAT, SHARDED_FORMAT


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
        "tensors": (_tensor_row(graph, index) for index in range(len(graph.tensors))),
        "operations": (
            _operation_row(graph.operation(index), names) for index in range(len(graph.operations))
        ),
        "results": (names[tensor] for tensor in graph.results),
    }


def _tensor_row(graph: Graph, index: int) -> dict[str, Any]:
    tensor = graph.tensor(index)
    row: dict[str, Any] = {"name": tensor.name, "bytes": tensor.bytes, "kind": tensor.kind.word}
    if tensor.layer is not None:
        row["layer"] = tensor.layer
    if index in graph.tensors.spread:
        row["spread"] = True
    if index in graph.tensors.shares:
        row["share"] = graph.tensors.shares[index]
    return row


def _operation_row(operation: Operation, names: Any) -> dict[str, Any]:
    # graph_digest hashes these rows: leaving out other fields changes the digest that schedule files name.
    row: dict[str, Any] = {"name": operation.name, "phase": operation.phase.word, "time": operation.time}
    if operation.launch:
        row["launch"] = operation.launch
    if operation.workspace:
        row["workspace"] = operation.workspace
    row["reads"] = [names[tensor] for tensor in operation.reads]
    row["writes"] = [names[tensor] for tensor in operation.writes]
    if operation.mutates:
        row["mutates"] = [names[tensor] for tensor in operation.mutates]
    if not operation.recompute:
        row["recompute"] = False
    if operation.random:
        row["random"] = True
    if operation.on_comm:
        row["queue"] = "comm"
    if operation.layer is not None:
        row["layer"] = operation.layer
    if operation.modes:
        row["modes"] = {mode.name: _mode_row(operation, mode, names) for mode in operation.modes}
    return row


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
