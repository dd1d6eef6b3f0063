"""Options of commands that plan sharded training: its ranks, their network, replicas, and nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import click

from ..graphs.machine import Machine, Peers
from ..graphs.machines.networks import NETWORKS, find_network, find_replicas
from ..graphs.machines.nodes import part_of_node

_NODE = 8
"""Ranks on a node, if nobody says otherwise: most nodes have so many devices."""


def network_options(
    least: int, ranks: str, link: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what adds the options to a command, which hands them to `Network`.

    least: ranks at least. ranks, link: the defaults, in words.
    """
    options = (
        click.option(
            "--ranks",
            type=click.IntRange(least),
            metavar="N",
            help="GPUs that train together, each with its own batch: weights, gradients and optimizer states "
            f"are sharded (FSDP, ZeRO-3).  [default: {ranks}]",
        ),
        click.option(
            "--link",
            metavar="NAME|RATE",
            help=f"Network between them: {', '.join(NETWORKS)}, or what a GPU receives: 45GB/s or "
            f"45GB/s,30us.  [default: that of --machine, else {link}]",
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
            f"most {_NODE}]",
        ),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@dataclass(frozen=True)
class Network:
    """The options, each None if it is not given."""

    ranks: int | None = None
    link: str | None = None
    replicas: int | None = None
    replica_link: str | None = None
    node_ranks: int | None = None

    @staticmethod
    def of(options: dict[str, Any]) -> Network:
        """Return the options of a network, and take them out of a command's options."""
        return Network(**{each.name: options.pop(each.name) for each in fields(Network)})

    @property
    def named(self) -> str | None:
        """The first option that is given, None if none is."""
        given = (name for name, value in vars(self).items() if value is not None)
        return next((f"--{name.replace('_', '-')}" for name in given), None)

    def peers(self, known: Peers | None, default: str | None) -> Peers:
        """Return the network. known: that of the machine file. default: the name of another one, if neither
        is given.

        Raises UsageError or InputError, one line.
        """
        if self.replica_link is not None and self.replicas is None:
            raise click.UsageError("--replica-link goes with --replicas: --replicas 2 --replica-link eth100")
        if known is not None and self.link is None:
            if self.ranks not in (None, known.ranks) or self.replicas is not None:
                raise click.UsageError(
                    f"the machine file has a network of {known.ranks} ranks: give --ranks {known.ranks} "
                    "without --replicas, or give --link too"
                )
            return known
        if self.ranks is None:
            raise click.UsageError(
                "how many ranks? Give --ranks 8, or --machine with a file that has a network (plan machine "
                "--network)"
            )
        link = self.link or default
        if link is None:
            raise click.UsageError(
                f"--ranks {self.ranks}: give their network too: --link {'|'.join(NETWORKS)}"
            )
        peers = find_network(link, self.ranks)
        if self.replicas is None:
            return peers
        return replace(peers, replicas=find_replicas(self.replica_link or link, self.replicas))

    def machine_of_rank(self, machine: Machine, peers: Peers) -> Machine:
        """Return what a rank has of a node's machine, with the network."""
        part = part_of_node(machine, self.node_ranks or min(peers.ranks, _NODE))
        return replace(part, links=replace(part.links, peers=peers))
