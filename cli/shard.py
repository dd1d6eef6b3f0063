"""`plan shard`: the graph that one rank of sharded training runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np

from ..graphs.errors import InputError
from ..graphs.files.files import load_graph, save_graph
from ..graphs.graph import Graph, Kind
from ..graphs.machine import Machine, Peers, Replicas
from ..graphs.machines.networks import find_network, find_replicas
from ..graphs.machines.nodes import part_of_node
from ..graphs.transformations.sharding import rank_bytes, sharded
from ..graphs.transformations.updates import ADAMW, SGD, Optimizer, with_updates
from ..graphs.units import format_bytes
from .options import chosen_machine, destination_option, machine_option, output_options
from .parameter_types import DOCUMENT, Word
from .printing.figures import graph_row, network_rows
from .printing.output import Output, labelled
from .printing.output_files import destination_of, write_out

_NODE = 8
"""Ranks on a node, if nobody says otherwise: most nodes have so many devices."""

_LINK = "nvlink"
"""Network between ranks, if nobody says otherwise."""

_OPTIMIZERS: dict[str, Optimizer] = {"adamw": ADAMW, "sgd": SGD}


@click.command()
@click.argument("graph_path", metavar="GRAPH", type=DOCUMENT)
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Devices that weights are spread over.  [default: those of --machine]",
)
@click.option(
    "--link",
    metavar="NAME|RATE",
    help="Network between them: nvlink, pcie4, pcie5, ib400, eth100, or what a device receives: "
    "45GB/s or 45GB/s,30us.  [default: that of --machine, else nvlink]",
)
@click.option(
    "--replicas",
    type=click.IntRange(2),
    help="Sets of --ranks devices that train together: each gathers within itself, and gradients are "
    "all-reduced between them (HSDP).  [default: one set]",
)
@click.option(
    "--replica-link",
    metavar="NAME|RATE",
    help="Network between the replicas, as of --link.  [default: that of --link]",
)
@click.option(
    "--optimizer",
    type=Word(_OPTIMIZERS),
    help="Optimizer whose updates are added to a graph that has none.  [default: the graph has them]",
)
@machine_option
@click.option(
    "--node-ranks",
    type=click.IntRange(1),
    help="Ranks on one node, which divide its host memory, CPU and disks.  [default: --ranks, at most 8]",
)
@destination_option("GRAPH.sharded.json in the working folder")
@output_options
def shard(
    graph_path: Path,
    ranks: int | None,
    link: str | None,
    replicas: int | None,
    replica_link: str | None,
    optimizer: str | None,
    machine_path: Path | None,
    node_ranks: int | None,
    destination: Path | None,
    output: Output,
) -> None:
    """Write GRAPH as one rank of sharded training runs it (ZeRO-3, FSDP): weights, gradients and optimizer
    states spread over the ranks.

    With --machine, or a graph that names a machine with links, activations and the shares of optimizer states
    can be offloaded to the host. A machine file may have a network too, like the one that plan machine
    --network measures.

    \b
    plan shard graph.yaml --ranks 8 --link ib400 --optimizer adamw -o sharded.yaml
    plan shard graph.yaml --ranks 8 --link nvlink --replicas 2 --replica-link eth100 -o sharded.yaml
    plan solve sharded.yaml --budget 8GiB -o schedule.json
    """
    if replica_link is not None and replicas is None:
        raise click.UsageError("--replica-link goes with --replicas: --replicas 2 --replica-link eth100")
    to = destination_of(destination, graph_path, ".sharded.json")
    graph, given = load_graph(graph_path), chosen_machine(machine_path, output)
    peers = _network(ranks, link, replicas, replica_link, given and given.links.peers)
    machine = given or graph.machine
    if optimizer is not None:
        graph = _with_updates(graph, _OPTIMIZERS[optimizer], machine)
    if machine is not None:
        graph = replace(graph, machine=part_of_node(machine, node_ranks or min(peers.ranks, _NODE)))
    found = sharded(graph, peers)
    written = write_out(to, partial(save_graph, found))
    states = found.tensors.kind == Kind.OPTIMIZER_STATE
    whole = int(graph.tensors.bytes[np.flatnonzero(found.persistent & (found.spread | states))].sum())
    share = rank_bytes(found)
    output.result(
        {
            "graph": found.name,
            "ranks": peers.ranks,
            "link": {"rate": peers.rate, "latency": peers.latency},
            "replicas": peers.replicas and _replicas_document(peers.replicas),
            "spread": len(found.tensors.spread),
            "spread_bytes": whole,
            "share_bytes": share,
            "file": written.name,
        },
        labelled(
            [
                graph_row(found),
                *network_rows(peers),
                ("weights and states", f"{format_bytes(whole)}, {format_bytes(share)} on each"),
                *written.row(),
            ]
        ),
    )
    written.tell()


def _network(
    ranks: int | None, link: str | None, replicas: int | None, replica_link: str | None, known: Peers | None
) -> Peers:
    """Return the network that the options name. known: that of the machine file, taken if they name none."""
    if known is not None and ranks is None and link is None and replicas is None:
        return known
    if known is not None and link is None:
        raise click.UsageError(
            f"the machine file has a network of {known.ranks} ranks: leave --ranks and --replicas out, or "
            "give --link too"
        )
    if ranks is None:
        raise click.UsageError(
            "how many ranks? Give --ranks 8, or --machine with a file that has a network (plan machine "
            "--network)"
        )
    peers = find_network(link or _LINK, ranks)
    if replicas is None:
        return peers
    return replace(peers, replicas=find_replicas(replica_link or link or _LINK, replicas))


def _replicas_document(replicas: Replicas) -> dict[str, float]:
    return {"count": replicas.count, "rate": replicas.rate, "latency": replicas.latency}


def _with_updates(graph: Graph, optimizer: Optimizer, machine: Machine | None) -> Graph:
    device = None if machine is None else machine.updates.device
    if device is None:
        raise InputError(
            f"{graph.name}: its machine says nothing of updates: profile it with --optimizer, or add "
            "updates: {device: 150GB/s} to its machine"
        )
    return with_updates(graph, optimizer=optimizer, when="in-backward", device_rate=device)
