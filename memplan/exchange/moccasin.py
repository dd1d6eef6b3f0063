"""MOCCASIN's instances: networkx's node-link JSON, of Checkmate's graphs and of random layered ones.

    nodes    id, name, backward, cost_cpu, cost_ram           Checkmate's graphs, as MOCCASIN has them
             name (a number), duration, out_cost, param_cost  random layered graphs
    links    source, target; or 0, 1                          the source's output is an input of the target
    graph    name, order (of ids; without it networkx's topological order counts)

Reference: Bartan et al., Moccasin: Efficient Tensor Rematerialization for Neural Networks, ICML 2023,
arXiv:2304.14463; the random layered graphs: Gagrani et al., NeurIPS 2022, arXiv:2207.05899, appendix A.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx

from ..graphs.files.documents import read_document, write_document
from ..graphs.files.fields import Row, mapping, sequence
from ..graphs.graph import Graph
from .formats import Options
from .nodes import Node, amount, fixed_bytes, graph_of_nodes, nodes_of, refuse_losses, whole


def read(path: Path, options: Options) -> Graph:
    """Return the graph in the file's order, or else in networkx's topological order, as MOCCASIN does.

    Raises ValueError or InputError.
    """
    document = mapping(read_document(path), "a MOCCASIN instance")
    if not document.get("directed") or "nodes" not in document:
        raise ValueError("is no directed graph in networkx's node-link form")
    about = mapping(document.get("graph") or {}, "field 'graph'")
    rows = [mapping(row, "a node") for row in sequence(document["nodes"], "field 'nodes'")]
    dag = _dag(rows, [mapping(row, "a link") for row in _links(document)])
    place = {node: index for index, node in enumerate(_order(dag, about))}
    by_id = {_id(row): row for row in rows}
    names = [str(row.get("name", "")) for row in rows]
    # Random layered graphs have numbers as names: their nodes become n0, n1, …
    named = all(isinstance(row.get("name"), str) for row in rows) and len({*names}) == len(names)
    nodes = [
        _node(by_id[node], named, [place[before] for before in dag.predecessors(node)]) for node in place
    ]
    name = str(about.get("name") or path.name.removesuffix(".gz").removesuffix(".json"))
    return graph_of_nodes(name, nodes, options, {"kind": "moccasin", "file": path.name})


def write(graph: Graph, path: Path, options: Options) -> list[str]:
    """Write the graph as node-link JSON and return what is lost, a line each. Raises InputError."""
    nodes, lost = nodes_of(graph, options)
    if graph.resident.any():
        lost.append(f"{fixed_bytes(graph):,} bytes of inputs and persistent tensors")
    refuse_losses("MOCCASIN's format", lost, options)
    rows = [
        {
            "name": node.name,
            "backward": node.backward,
            "cost_cpu": node.time,
            "cost_ram": node.size,
            "id": index,
        }
        for index, node in enumerate(nodes)
    ]
    links = [{"source": read, "target": index} for index, node in enumerate(nodes) for read in node.reads]
    about = {"name": graph.name, "order": list(range(len(nodes)))}
    document = {"directed": True, "multigraph": False, "graph": about, "nodes": rows, "links": links}
    write_document(document, path)
    return lost


def _links(document: Row) -> list[Any]:
    """Return the field `links`, which newer versions of networkx call `edges`."""
    found = document.get("links", document.get("edges"))
    return sequence(found, "field 'links'")


def _dag(rows: list[Row], links: list[Row]) -> nx.DiGraph[Any]:
    dag: nx.DiGraph[Any] = nx.DiGraph()
    for row in rows:
        if _id(row) in dag:
            raise ValueError(f"two nodes have the id {_id(row)!r}")
        dag.add_node(_id(row))
    for row in links:
        ends = [row.get("source", row.get("0")), row.get("target", row.get("1"))]
        for end in ends:
            if not isinstance(end, int | str) or end not in dag:
                raise ValueError(f"a link names {end!r}, which is no node")
        dag.add_edge(*ends)
    return dag


def _id(row: Row) -> int | str:
    found = row.get("id", row.get("name"))
    if isinstance(found, bool) or not isinstance(found, int | str):
        raise ValueError("a node has no id: it is a whole number or a text")
    return found


def _order(dag: nx.DiGraph[Any], about: Row) -> list[int | str]:
    try:
        found = list(nx.topological_sort(dag))
    except nx.NetworkXUnfeasible:
        raise ValueError("the links go round in a circle") from None
    if "order" not in about:
        return found
    order = sequence(about["order"], "field 'order'")
    if (
        # type(): True would be equal to the id 1.
        not all(type(node) in (int, str) for node in order)
        or {*order} != {*found}
        or len(order) != len(found)
    ):
        raise ValueError("field 'order' is not the nodes, each once, by their ids")
    place = {node: index for index, node in enumerate(order)}
    for before, later in dag.edges:
        if place[before] > place[later]:
            raise ValueError(f"field 'order' has {later!r} before {before!r}, which it needs")
    return order


def _node(row: Row, named: bool, reads: list[int]) -> Node:
    label = f"node {_id(row)!r}"
    if row.get("param_cost"):
        raise ValueError(f"{label}: has a 'param_cost', which is not understood")
    time, size = row.get("cost_cpu", row.get("duration")), row.get("cost_ram", row.get("out_cost"))
    return Node(
        row["name"] if named else f"n{_id(row)}",
        amount(time, f"{label}: 'cost_cpu' (or 'duration')"),
        whole(size, f"{label}: 'cost_ram' (or 'out_cost')"),
        reads,
        bool(row.get("backward")),
    )
