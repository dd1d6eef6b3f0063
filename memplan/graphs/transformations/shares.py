"""Tensors of a graph that the ranks of sharded training have shares of, and the operations on shares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..graph import Graph, Kind, Phase
from ..machine import Peers


class Parts(NamedTuple):
    """Tensors of which each rank has a share, and the operations that work on shares.

    weights: those of as many bytes as there are ranks. gradients, states: of all weights. on_shares: per
    operation, whether it is an update, or one of those that sum gradients up over batches or take their norm.
    """

    weights: frozenset[int]
    gradients: frozenset[int]
    states: frozenset[int]
    on_shares: NDArray[np.bool_]


def parts_of(graph: Graph, peers: Peers) -> Parts:
    """Return what the ranks have shares of. Of a forward pass, that is the weights alone.

    Raises InputError, one line, if gradients have no updates, or a tensor can't be spread over ranks.
    """
    if graph.tensors.spread:
        raise InputError(f"{graph.name}: its tensors are spread over ranks already")
    if graph.operations.comm:
        name = graph.operations.name[min(graph.operations.comm)]
        raise InputError(f"{graph.name}: its ranks communicate already, see {name}: it can't be sharded too")
    kind = graph.tensors.kind
    on_shares = graph.operations.phase == Phase.UPDATE
    if not on_shares.any() and Kind.PARAMETER_GRADIENT in kind:
        raise InputError(f"{graph.name}: it has no optimizer updates: add them with --optimizer adamw")
    states: list[int] = np.flatnonzero(kind == Kind.OPTIMIZER_STATE).tolist()
    for x in states:  # sums of gradients are added to, and read for their norm, outside of updates
        on_shares[graph.mutators[x]] = True
        on_shares[graph.consumers[x]] = True
    read = {x for operation in np.flatnonzero(on_shares).tolist() for x in graph.read_lists[operation]}
    gradients = {x for x in read if kind[x] == Kind.PARAMETER_GRADIENT}
    for x in gradients:
        on_shares[graph.consumers[x]] = True
    weights = np.flatnonzero((kind == Kind.PARAMETER) & (graph.tensors.bytes >= peers.ranks)).tolist()
    found = Parts(frozenset(weights), frozenset(gradients), frozenset(states), on_shares)
    for x in sorted(found.weights | found.gradients):
        _check(graph, found, x)
    return found


def _check(graph: Graph, parts: Parts, x: int) -> None:
    """Raise InputError if something else than an operation on shares changes a tensor, or one makes it."""
    # Backward may change gradients in place; weights are changed on shares alone.
    changing = [o for o in graph.mutators[x].tolist() if not parts.on_shares[o] and x in parts.weights]
    making = [o for o in graph.producers[x].tolist() if parts.on_shares[o]]
    if changing or making or (x in parts.gradients and x in graph.results):
        name = graph.operations.name[(changing or making or [int(graph.producers[x][-1])])[0]]
        raise InputError(f"{graph.name}: {graph.tensors.name[x]} can't be spread over ranks: see {name}")


def share_of_workspace(graph: Graph, parts: Parts, operation: int, workspace: int, peers: Peers) -> int:
    """Return the workspace of an operation on shares, with its copies of gradients and weights as shares.

    What is in addition to whole copies, as numbers and rounding, does not become less with the share.
    """
    spread = parts.weights | parts.gradients
    sizes = (int(graph.tensors.bytes[x]) for x in graph.input_lists[operation] if x in spread)
    largest = max(sizes, default=0)
    # As many whole copies as fit into the workspace shrink to shares; the rest does not.
    copies, rest = divmod(workspace, largest) if largest else (0, workspace)
    return copies * peers.share_of(largest) + rest


def name_of_rank(graph: Graph, peers: Peers) -> str:
    """Return the name of the graph that one of these ranks runs."""
    replicas = "" if peers.replicas is None else f"{peers.replicas.count}x"
    return f"{graph.name}-{replicas}{peers.ranks}ranks"
