"""Checkmate's graphs: its class DFGraph as a pickle, or a pickled dict of the arguments that make one.

    v                     nodes, whole numbers whose order is the order of execution
    args                  node -> the nodes that it reads
    backward_nodes        those of backward
    cost_cpu, cost_ram    node -> whole numbers: time and bytes of its output; 1 if there are none
    node_names            node -> text
    cost_ram_parameters   bytes; parameters and their gradients, twice that, are always there

Checkmate itself writes no graphs. `write` makes the dict: `DFGraph(**pickle.load(file))`.

Reference: Jain et al., Checkmate, MLSys 2020, arXiv:1910.02653; github.com/parasj/checkmate.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from ..graphs.errors import InputError
from ..graphs.files.documents import write_whole
from ..graphs.files.fields import mapping
from ..graphs.graph import Graph
from .formats import Options
from .nodes import Node, amount, graph_of_nodes, nodes_of, refuse_losses, whole
from .pickles import Record, text_of, unpickled

PACKAGES = {"checkmate", "remat"}
"""Names that the package has and had."""


def read(path: Path, options: Options) -> Graph:
    """Return the graph in a pickle of Checkmate. Raises ValueError or InputError."""
    found = unpickled(path, PACKAGES)
    if isinstance(found, Record):
        if not found.origin.endswith(".DFGraph"):
            raise ValueError(f"holds {found}, not a DFGraph")
        found = found.fields
    fields = mapping(found, "a DFGraph")
    numbers = sorted(_numbers(fields.get("v"), "v"))
    place = {number: index for index, number in enumerate(numbers)}
    backward = {*_numbers(fields.get("backward_nodes") or (), "backward_nodes")}
    args = _by_node(fields, "args")
    times, sizes = (_by_node(fields, field) for field in ("cost_cpu", "cost_ram"))
    names = _names(numbers, _by_node(fields, "node_names"))
    nodes: list[Node] = []
    for number in numbers:
        time = amount(times.get(number) if times else 1, f"cost_cpu of node {number}")
        size = whole(sizes.get(number) if sizes else 1, f"cost_ram of node {number}")
        reads = _numbers(args.get(number, ()), f"args of node {number}")
        for read in reads:
            if place.get(read, len(place)) >= place[number]:  # len(place): a node that is missing
                raise ValueError(f"node {number} reads node {read}, which does not stand before it")
        nodes.append(Node(names[number], time, size, [place[read] for read in reads], number in backward))
    parameters = whole(fields.get("cost_ram_parameters") or 0, "cost_ram_parameters")
    source = {"kind": "checkmate", "file": path.name}
    return graph_of_nodes(path.stem, nodes, options, source, 2 * parameters)


def write(graph: Graph, path: Path, options: Options) -> list[str]:
    """Write the graph as a pickled dict and return what is lost, a line each. Raises InputError.

    Inputs and persistent tensors count as parameters with their gradients: an even number of bytes, rounded
    up.
    """
    nodes, lost = nodes_of(graph, options)
    refuse_losses("Checkmate's format", lost, options)
    arguments = {
        "v": list(range(len(nodes))),
        "args": {index: list(node.reads) for index, node in enumerate(nodes)},
        "backward_nodes": {index for index, node in enumerate(nodes) if node.backward},
        "cost_cpu": {index: node.time for index, node in enumerate(nodes)},
        "cost_ram": {index: node.size for index, node in enumerate(nodes)},
        "node_names": {index: node.name for index, node in enumerate(nodes)},
        "cost_ram_parameters": -(-graph.resident_bytes // 2),
    }
    try:
        write_whole(pickle.dumps(arguments, protocol=4), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    return lost


def _numbers(value: object, what: str) -> list[int]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise ValueError(f"{what} must be numbers of nodes, not {text_of(value)}")
    items = cast("Iterable[Any]", value)
    return [whole(item, f"a node in {what}") for item in items]


def _by_node(fields: dict[str, Any], field: str) -> dict[Any, Any]:
    return mapping(fields.get(field) or {}, f"field {field!r}")


def _names(numbers: list[int], given: dict[Any, Any]) -> dict[int, str]:
    """Return the file's names if each node has its own, else n0, n1, …"""
    names = [given.get(number) for number in numbers]
    if all(isinstance(name, str) and name for name in names) and len({*names}) == len(names):
        return {number: given[number] for number in numbers}
    return {number: f"n{number}" for number in numbers}
