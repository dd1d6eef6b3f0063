"""The nodes of a joint graph: its results, what they need, and the residents of its placeholders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from ...graphs.graph import Kind
from ..calls.randomness import draws
from .joint import Joint

aten: Any = torch.ops.aten


def results(joint: Joint) -> list[fx.Node]:
    output: Any = next(iter(reversed(joint.graph.graph.nodes)))
    return list(output.args[0])


def needed_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that the results, a change in place or eager's random numbers need, in order."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_root = node.op in ("placeholder", "output") or changes_in_place(node) or draws_numbers(node)
        if is_root or node in needed:
            needed.add(node)
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed]


def changes_in_place(node: fx.Node) -> bool:
    return node.target is aten.copy_.default


def draws_numbers(node: fx.Node) -> bool:
    return node.op == "call_function" and draws(node.target, node.args, node.kwargs)


def named_residents(joint: Joint) -> Iterator[tuple[str, Kind]]:
    """Yield names and kinds of the placeholders, in order."""
    for name in joint.parameters:
        yield name, Kind.PARAMETER
    for name in joint.buffers:
        yield name, Kind.BUFFER
    for name in joint.inputs:
        yield f"inputs.{name}", Kind.INPUT
