"""`plan shard`: the graph that one rank of sharded training runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..graphs.errors import InputError
from ..graphs.files.files import save_graph
from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine
from ..graphs.machines.networks import network_rows, replicas_document
from ..graphs.transformations.gathering import with_gathers
from ..graphs.transformations.mixed_precision import MixedPrecision, sharded_in_mixed_precision
from ..graphs.transformations.sharding import rank_bytes, sharded
from ..graphs.transformations.shares import parts_of
from ..graphs.transformations.updates import ADAMW, SGD, Optimizer, with_updates
from ..graphs.units import format_bytes
from .help import PlanCommand
from .network_options import chosen_network, network_options, precision_options
from .options import chosen_machine, destination_option, machine_option, output_options
from .parameter_types import DOCUMENT, Word
from .printing.figures import graph_row
from .printing.output import Output, labelled
from .printing.output_files import destination_of, write_out
from .splits import whole_graph

_LINK = "nvlink"
"""Network between ranks, if nobody says otherwise."""

_OPTIMIZERS: dict[str, Optimizer] = {"adamw": ADAMW, "sgd": SGD}


@click.command(cls=PlanCommand)
@click.argument("graph_path", metavar="GRAPH", type=DOCUMENT)
@network_options(1, "those of --machine", _LINK)
@click.option(
    "--optimizer",
    type=Word(_OPTIMIZERS),
    help="Optimizer whose updates are added to a graph that has none.  [default: the graph has them]",
)
@machine_option("that of the graph")
@click.option(
    "--offload-shares",
    is_flag=True,
    help="Let shares of weights and gradients be on the host too, and be updated on its CPU: gathers and "
    "scatters are operations then, which the solvers for any graph take.",
)
@destination_option("GRAPH.sharded.json in the working folder")
@precision_options
@output_options
def shard(
    graph_path: Path,
    optimizer: str | None,
    machine_path: Path | None,
    offload_shares: bool,
    param_dtype: str | None,
    reduce_dtype: str | None,
    destination: Path | None,
    output: Output,
    **options: Any,
) -> None:
    """Write GRAPH as one rank of sharded training runs it (ZeRO-3, FSDP): weights, gradients and optimizer
    states spread over the ranks.

    With --machine, a node's, activations and the shares of optimizer states can be offloaded to the host;
    with --offload-shares those of weights too. Gathers over PCIe and copies to the host take turns. A machine
    file may have a network too, like the one that plan machine --network measures. --param-dtype is for a
    graph with --master-weights: the masters are the shares.

    \b
    plan shard graph.yaml --ranks 8 --link ib400 --optimizer adamw -o sharded.yaml
    plan shard graph.yaml --ranks 8 --link nvlink --replicas 2 --replica-link eth100 -o sharded.yaml
    plan shard graph.yaml --ranks 2 --link pcie4 --machine rtx4090 --offload-shares -o sharded.yaml
    plan solve sharded.yaml --budget 8GiB -o schedule.json
    """
    if reduce_dtype is not None and param_dtype is None:
        raise click.UsageError("--reduce-dtype goes with --param-dtype bfloat16")
    network, to = chosen_network(options), destination_of(destination, graph_path, ".sharded.json")
    graph, given = whole_graph(graph_path, output), chosen_machine(machine_path, output)
    peers = network.peers(given and given.links.peers, _LINK)
    machine = given or graph.machine
    if machine is not None and given is None and not offload_shares:
        # The graph's machine is the one it was estimated for: nobody has asked for its host.
        machine = replace(machine, links=Links(), host_capacity=None, disk_capacity=None, deeper=())
    if machine is not None:
        graph = replace(graph, machine=network.machine_of_rank(machine, peers))
    if optimizer is not None:
        graph = _with_updates(graph, _OPTIMIZERS[optimizer], on_host=offload_shares)
    if param_dtype is not None:
        policy = MixedPrecision(_cast_seconds(graph) if reduce_dtype == "float32" else None)
        found = sharded_in_mixed_precision(graph, peers, policy, offload_shares=offload_shares)
    else:
        found = with_gathers(graph, peers) if offload_shares else sharded(graph, peers)
    written = write_out(to, partial(save_graph, found))
    parts = parts_of(graph, peers)
    spread = parts.weights | parts.gradients
    whole = int(graph.tensors.bytes[[*parts.weights, *parts.states]].sum())
    share = rank_bytes(found)
    output.result(
        {
            "graph": found.name,
            "ranks": peers.ranks,
            "link": {"rate": peers.rate, "latency": peers.latency},
            "replicas": replicas_document(peers.replicas),
            "spread": len(spread),
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


def _cast_seconds(graph: Graph) -> Callable[[int], float]:
    """Return a function of a gradient's bytes: the seconds in which it is cast to float32 on the device."""
    from ..profiling.profile.loops import adding_rate  # torch takes seconds to load

    rate = adding_rate((graph.machine or Machine()).updates)
    if rate is None:
        raise InputError(
            f"{graph.name}: --reduce-dtype float32: its machine says nothing of updates, whose speed casts "
            "have: add updates: {device: 150GB/s} to its machine"
        )
    return lambda size: size / rate


def _with_updates(graph: Graph, optimizer: Optimizer, *, on_host: bool) -> Graph:
    """Return the graph with updates. on_host: the CPU may run them, if its rate is known."""
    rates = (graph.machine or Machine()).updates
    if rates.device is None:
        raise InputError(
            f"{graph.name}: its machine says nothing of updates: profile it with --optimizer, or add "
            "updates: {device: 150GB/s} to its machine"
        )
    return with_updates(
        graph,
        optimizer=optimizer,
        when="in-backward",
        device_rate=rates.device,
        host_rate=rates.host if on_host else None,
    )
