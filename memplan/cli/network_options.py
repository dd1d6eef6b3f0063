"""Options of commands that plan sharded training: its ranks, their network, replicas, and nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from ..graphs.machines.network_request import NODE, NetworkRequest
from ..graphs.machines.networks import NETWORKS
from ..graphs.transformations.mixed_precision import PARAM_DTYPES, REDUCE_DTYPES
from .parameter_types import dtype_word


def precision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of mixed precision between ranks to a command."""
    reduce = click.option(
        "--reduce-dtype",
        type=dtype_word(REDUCE_DTYPES),
        help="Dtype in which ranks sum up gradients, as reduce_dtype of that policy.  [default: that of "
        "--param-dtype]",
    )
    gather = click.option(
        "--param-dtype",
        type=dtype_word(PARAM_DTYPES),
        help="Dtype in which weights are gathered, as param_dtype of FSDP2's MixedPrecisionPolicy: shares "
        "stay in float32, and are the master weights.  [default: that of the weights]",
    )
    return gather(reduce(command))


def network_options(
    least: int, ranks: str, link: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what adds the options to a command, which hands them to `chosen_network`.

    least: ranks at least. ranks, link: the defaults, in words.
    """
    options = (
        click.option(
            "--ranks",
            type=click.IntRange(least, 2**20),
            metavar="N",
            help="GPUs that train together, each with its own batch: weights, gradients and optimizer states "
            f"are sharded (FSDP, ZeRO-3).  [default: {ranks}]",
        ),
        click.option(
            "--link",
            metavar="NAME|RATE",
            help=f"Network between them: {', '.join(NETWORKS)}, or what a GPU receives: 45GB/s, "
            "45GB/s,30us, or 20GB/s,slot (copies to the host take the same slot), 45GB/s,adapter (an adapter "
            f"at that slot).  [default: that of --machine, else {link}]",
        ),
        click.option(
            "--replicas",
            type=click.IntRange(2),
            metavar="N",
            help="Sets of --ranks GPUs that train together: each gathers within itself, and gradients are "
            "all-reduced between them (HSDP).  [default: one set]",
        ),
        click.option(
            "--replica-link",
            metavar="NAME|RATE",
            help="Network between the replicas, as of --link.  [default: that of --link]",
        ),
        click.option(
            "--node-ranks",
            type=click.IntRange(1),
            metavar="N",
            help="Ranks on one node, which divide its host memory, CPU and disks.  [default: --ranks, at "
            f"most {NODE}]",
        ),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def chosen_network(options: dict[str, Any]) -> NetworkRequest:
    """Return the options of a network, and take them out of a command's options."""
    return NetworkRequest(**{each.name: options.pop(each.name) for each in fields(NetworkRequest)})
