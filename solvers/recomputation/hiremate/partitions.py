"""The partitioners that Hiremate can use, by name: each makes a tree of clusters from a graph."""

from __future__ import annotations

from collections.abc import Callable

from ....graphs.clusters.clusters import Cluster
from ....graphs.errors import InputError
from ....graphs.graph import Graph, Phase
from ....graphs.partition.partition import partition
from ....graphs.structure.chain import Block, chain_of
from ...chains.problem import coarser
from ..hierarchy.tree import Branch, Tree

Partitioner = Callable[[Graph, int, int], Tree]
"""Function (graph, most nodes of the top, most nodes of a cluster) -> tree."""


def tree_of(name: str, graph: Graph, top: int, lower: int) -> Tree:
    if name not in PARTITIONERS:
        raise InputError(f"unknown partitioner {name!r}: {', '.join(PARTITIONERS)}")
    return PARTITIONERS[name](graph, top, lower)


def sequential(graph: Graph, top: int, lower: int) -> Tree:
    """Return the chain of blocks, as Rockmate's.

    Neighbours are joined if it has more than `top` blocks. Blocks with more than `lower` operations have the
    blocks that were joined as children.
    """
    fine = chain_of(graph)
    loss = [o for o in fine.blocks[-1].forward if graph.operations.phase[o] == Phase.LOSS]
    behind = fine.blocks[-1].forward.index(loss[0]) if loss else len(fine.blocks[-1].forward)
    middle = fine.blocks[-1].forward[behind:]
    blocks = [*fine.blocks[:-1], Block(fine.blocks[-1].forward[:behind], fine.blocks[-1].backward, None)]
    place = {o: index for index, block in enumerate(blocks) for o in (*block.forward, *block.backward)}
    coarse = coarser(graph, fine, top)
    branches: list[Branch] = []
    for block in coarse.blocks:
        inside = sorted({place[o] for o in (*block.forward, *block.backward) if o in place})
        members = [Branch(blocks[i].forward, blocks[i].backward) for i in inside]
        forward = tuple(o for member in members for o in member.forward)
        grouped = tuple(members) if len(members) > 1 and len(forward) > lower else ()
        if forward or block.backward:
            branches.append(Branch(forward, block.backward, grouped))
    return Tree(tuple(branches), middle, fine.after)


def h_partition(graph: Graph, top: int, lower: int) -> Tree:
    """Return the clusters of H-Partition, each with its operations as its children run."""
    found = partition(graph, top=top, lower=lower)
    branches = tuple(_branch(child) for child in found.root.children)
    return Tree(branches, tuple(found.middle.tolist()), tuple(found.after.tolist()))


def _branch(cluster: Cluster) -> Branch:
    if not cluster.children:
        return Branch(tuple(cluster.forward.tolist()), tuple(cluster.backward.tolist()))
    children = tuple(_branch(child) for child in cluster.children)
    forward = tuple(o for child in children for o in child.forward)
    nested = any(child.is_cluster for child in children)
    return Branch(forward, tuple(cluster.backward.tolist()), children if nested else ())


PARTITIONERS: dict[str, Partitioner] = {"h-partition": h_partition, "sequential": sequential}
