"""A training graph as one rank of sharded data parallelism sees it (ZeRO-3, FSDP).

    w, w.grad     spread over the ranks
    w.exp_avg     this rank's share, ⌈b/n⌉ bytes: no rank ever has the whole
    w/update      on the shares: a rank updates its own, in 1/n of the time

Weights and their gradients are spread. What reads a gradient, the norm for clipping as well, reads the sum
over the ranks, so it works on shares too. Frozen weights are spread, and never change. A share of an
optimizer state is a tensor like any other: a machine with links can have it on the host between its updates.
All else stays as it is: each rank computes with its own batch. Nothing but an update changes a spread tensor,
so a gradient that is summed up in place is summed up out of place:

    B1 ─w.grad─▶ add_ (changes w.grad)        B1 ─w.grad.0─▶ add_ ─w.grad─▶

Linear in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..draft import Draft
from ..graph import Graph, Kind, Phase
from ..machine import Machine, Peers
from .shares import name_of_rank, parts_of, share_of_workspace


def sharded(graph: Graph, peers: Peers, shares: Mapping[int, int] | None = None) -> Graph:
    """Return the graph of one rank of `peers.ranks`; its machine has that network.

    shares: bytes of the shares that are of another dtype than their tensors, as masters of weights are. A
        state among them is its weight's share, and is spread with it.

    Of a forward pass, which has no gradients, the weights alone are spread. Raises InputError, one line, if
    gradients have no updates, or a tensor can't be spread.
    """
    graph = _with_sums_out_of_place(graph)
    parts, operations = parts_of(graph, peers), graph.operations
    shares, on_shares = shares or {}, parts.on_shares
    spread = parts.weights | parts.gradients | (parts.states & shares.keys())
    local = sorted(parts.states - spread)
    sizes, workspace = graph.tensors.bytes.copy(), operations.workspace.copy()
    sizes[local] = -(-sizes[local] // peers.ranks)
    for o in np.flatnonzero(on_shares).tolist():
        workspace[o] = share_of_workspace(graph, parts, o, int(workspace[o]), peers)
    return replace(
        graph,
        name=name_of_rank(graph, peers),
        tensors=replace(graph.tensors, bytes=sizes, spread=spread, shares=shares),
        operations=replace(
            operations,
            # Only updates use spread tensors on the peers (Graph.on_peers).
            phase=np.where(on_shares, Phase.UPDATE, operations.phase).astype(np.uint8),
            time=np.where(on_shares, operations.time / peers.ranks, operations.time),
            workspace=workspace,
            # its variants would have weights in host memory: gathering.py has them
            modes={o: modes for o, modes in operations.modes.items() if not on_shares[o]},
        ),
        machine=_with_network(graph.machine or Machine(), peers),
        source={key: value for key, value in graph.source.items() if key != "fingerprint"},
    )


def rank_bytes(graph: Graph) -> int:
    """Return the bytes of a rank's shares of weights and optimizer states, wherever these lie."""
    kind = graph.tensors.kind
    states: list[int] = np.flatnonzero((kind == Kind.OPTIMIZER_STATE) & ~graph.spread).tolist()
    # With collectives as operations a weight's share is a tensor of its own, which the gather reads.
    gathered = {x for o in graph.operations.comm for x in graph.read_lists[o] if kind[x] == Kind.PARAMETER}
    return graph.share_bytes + int(graph.tensors.bytes[[*states, *gathered]].sum())


def _with_sums_out_of_place(graph: Graph) -> Graph:
    """Return the graph in which no operation but updates changes gradients. Operations keep their indices."""
    phase, kind = graph.operations.phase, graph.tensors.kind
    sums: dict[int, list[int]] = {
        x: changing
        for x in np.flatnonzero(kind == Kind.PARAMETER_GRADIENT).tolist()
        if (changing := [o for o in graph.mutators[x].tolist() if phase[o] == Phase.BACKWARD])
        # A sum that is read between its changes can't be renamed, and stays.
        and not any(o < changing[-1] and o not in changing for o in graph.consumers[x].tolist())
    }
    if not sums:
        return graph
    draft = Draft(graph.name)
    for x in range(len(graph.tensors)):
        draft.tensor(*graph.tensor(x))
    operations = graph.operations
    reads, writes, mutates = operations.reads.lists(), operations.writes.lists(), operations.mutates.lists()
    for x, changing in sums.items():
        name, size, _kind, layer = graph.tensor(x)
        parts = [draft.tensor(f"{name}.{k}", size, Kind.GRADIENT, layer) for k in range(len(changing))]
        making: list[int] = graph.producers[x].tolist()
        for o in making:
            writes[o] = [parts[0] if y == x else y for y in writes[o]]
        # Each sum before a change is a tensor of its own; the last change writes the gradient.
        for o, before, after in zip(changing, parts, [*parts[1:], x], strict=True):
            reads[o] = [*(y for y in reads[o] if y != x), before]
            writes[o].append(after)
            mutates[o].remove(x)
    for o in range(len(graph.operations)):
        edges = {"reads": tuple(reads[o]), "writes": tuple(writes[o]), "mutates": tuple(mutates[o])}
        draft.operation(**graph.operation(o)._replace(**edges)._asdict())
    return draft.graph(graph.results, graph.machine, graph.source)


def _with_network(machine: Machine, peers: Peers) -> Machine:
    return replace(machine, links=replace(machine.links, peers=peers))
