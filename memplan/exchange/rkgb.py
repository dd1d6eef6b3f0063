"""Rockmate's graphs: pickles of rkgb's Result, or of its ForwardAndBackwardGraph.

    computation_nodes   name, is_fwd, is_rand, time (ms), mem_overhead, deps_real,
                        required_parameter_nodes_real; in a topological order, the loss among them
    allocation_nodes    name, allocation_type (data, grad, phantoms), mem,
                        deps: who writes it, each a contribution
    parameter_nodes     param_name, mem, is_buffer

A Result holds the user's model and much of PyTorch too: all of it stays inert. The overhead of a node is its
peak above what it leaves, so it is the operation's workspace.

Reference: Zhao et al., Rockmate, ICML 2023, and X. Zhao, thesis, 2024, 2.2; github.com/topal-team/rockmate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ..graphs.draft import Draft
from ..graphs.files.fields import sequence
from ..graphs.graph import Graph, Kind, Phase
from .formats import Options
from .nodes import amount, whole
from .pickles import Record, unpickled

MILLISECOND = 1e-3


def read(path: Path, options: Options) -> Graph:
    """Return the graph in a pickle of rkgb. Raises ValueError or InputError."""
    found = _graph_in(unpickled(path, None))
    loss = found.fields.get("loss_cnode")
    draft = Draft(path.name.partition(".")[0])
    tensors: dict[Record, int] = {}
    writes: dict[Record, list[int]] = {}
    for node in _nodes(found, "parameter_nodes"):
        kind = Kind.BUFFER if node.fields.get("is_buffer") else Kind.PARAMETER
        name = _name(node, "param_name")
        tensors[node] = draft.tensor(name, whole(node.fields.get("mem"), f"mem of {name}"), kind)
    for node in _nodes(found, "allocation_nodes"):
        kind = Kind.GRADIENT if node.fields.get("allocation_type") == "grad" else Kind.ACTIVATION
        name = _name(node, "name")
        tensors[node] = draft.tensor(name, whole(node.fields.get("mem"), f"mem of {name}"), kind)
        for producer in _several(node, "deps"):
            writes.setdefault(producer, []).append(tensors[node])
    for node in _nodes(found, "computation_nodes"):
        name = _name(node, "name")
        needed = [*_several(node, "deps_real"), *_several(node, "required_parameter_nodes_real")]
        forward = Phase.FORWARD if node.fields.get("is_fwd") else Phase.BACKWARD
        overhead = node.fields.get("mem_overhead")
        draft.operation(
            name,
            time=amount(node.fields.get("time"), f"time of {name}") * MILLISECOND,
            reads=sorted(tensors[one] for one in needed if one in tensors),
            writes=sorted(writes.get(node, ())),
            phase=Phase.LOSS if node is loss else forward,
            workspace=max(0, overhead) if isinstance(overhead, int) else 0,
            recompute=node is not loss,
            random=bool(node.fields.get("is_rand")),
        )
    return draft.graph(source={"kind": "rkgb", "file": path.name})


def _graph_in(found: Any) -> Record:
    if isinstance(found, Record) and found.origin == "rkgb.rkgb.Result":
        found = found.fields.get("forward_and_backward_graph")
    if not isinstance(found, Record) or not found.origin.endswith(".ForwardAndBackwardGraph"):
        raise ValueError("holds no forward and backward graph of rkgb")
    return found


def _nodes(graph: Record, field: str) -> list[Record]:
    nodes = sequence(graph.fields.get(field), f"field {field!r}")
    if not all(isinstance(node, Record) for node in nodes):
        raise ValueError(f"field {field!r} holds something else than nodes")
    return nodes


def _several(node: Record, field: str) -> set[Any]:
    found = cast("set[Any]", node.fields.get(field) or set[Any]())
    if type(found) not in (set, frozenset):
        raise ValueError(f"field {field!r} of a node must be a set")
    return {*found}


def _name(node: Record, field: str) -> str:
    name = node.fields.get(field)
    if not isinstance(name, str) or not name:
        raise ValueError(f"a node has no {field!r}")
    return name
