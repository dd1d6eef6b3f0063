"""The clusters of a graph's forward part for Graphviz: boxes in boxes, as the thesis draws them (figure 3.4).

    subgraph cluster_7 { box; o0; c3; }     o0: an operation; c3: a cluster whose inside is not drawn
    o0 -> c3 [label="4 MB"]                 what the first makes and the second reads

Source: Zhao 2024, thesis, section 3.2.1; the language: https://graphviz.org/doc/info/lang.html.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from ..units import format_bytes
from .clusters import Cluster, Partition


def dot(partition: Partition, depth: int) -> str:
    """Return the clusters as a directed graph in DOT, from the inputs down.

    depth: levels below the root whose inside is drawn.
    """
    graph = partition.graph
    at: dict[int, str] = {}
    # A list: _inside fills `at` only while it is run to its end.
    body = list(_inside(partition.root, depth, at, "  "))
    between = Counter[tuple[str, str]]()
    for tensor, made in enumerate(graph.producers.lists()):
        # Backward operations and the loss have no node, so their edges are left out.
        producers = {at[operation] for operation in made if operation in at}
        readers = {at[operation] for operation in graph.consumers[tensor].tolist() if operation in at}
        size = graph.tensors.bytes.item(tensor)
        between.update(
            {(producer, reader): size for producer in producers for reader in readers if reader != producer}
        )
    edges = [
        f"  {producer} -> {reader} [label={_text(format_bytes(size))}];"
        for (producer, reader), size in sorted(between.items())
    ]
    head = f"digraph {_text(graph.name)} {{"
    return "\n".join([head, "  node [shape=box];", *body, *edges, "}"]) + "\n"


def _inside(cluster: Cluster, depth: int, at: dict[int, str], indent: str) -> Iterator[str]:
    """Yield the lines of its children. at: filled with the node that stands for each forward operation."""
    graph = cluster.partition.graph
    for child in cluster.children:
        forward = child.forward.tolist()
        if child.children and depth:
            # Graphviz draws a box only for subgraphs whose names begin with "cluster".
            yield f"{indent}subgraph cluster_{child.index} {{"
            yield f"{indent}  label={_text(f'{len(forward)} operations')};"
            yield from _inside(child, depth - 1, at, indent + "  ")
            yield f"{indent}}}"
            continue
        node = f"{'c' if child.children else 'o'}{child.index}"
        at.update(dict.fromkeys(forward, node))
        what = _text(f"{len(forward)} operations" if child.children else graph.operation(forward[0]).name)
        yield f"{indent}{node} [label={what}];"


def _text(text: str) -> str:
    """Return the text quoted."""
    return json.dumps(text, ensure_ascii=False)
