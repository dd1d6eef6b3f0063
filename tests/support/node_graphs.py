"""Random graphs of operations with one output each, and their peak by Checkmate's definition."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import strategies as st
from memplan.exchange.formats import Options
from memplan.exchange.nodes import Node, graph_of_nodes
from memplan.graphs.graph import Graph


def random_nodes(random: Random, count: int = 7) -> list[Node]:
    return [
        Node(
            f"v{index}",
            random.randrange(9),
            random.randrange(9),
            [before for before in range(index) if random.random() < 0.4],
            index > count // 2,
        )
        for index in range(count)
    ]


def graph_with(nodes: Sequence[Node]) -> Graph:
    return graph_of_nodes("nodes", nodes, Options(), {})


nodes = st.randoms(use_true_random=False).map(random_nodes)


def peak(nodes: Sequence[Node]) -> int:
    """Of the plain order: what is still to be read and the output, at the worst node."""
    last = {
        k: max((j for j, node in enumerate(nodes) if k in node.reads), default=k) for k in range(len(nodes))
    }
    return max(sum(nodes[k].size for k in range(j + 1) if last[k] >= j) for j in range(len(nodes)))
