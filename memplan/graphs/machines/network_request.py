"""The network that a user requests for sharded training: ranks, their link, replicas, and nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InputError
from ..machine import Machine, Peers
from .networks import NETWORKS, Way, find_network, find_replicas, sharing, way_of
from .nodes import part_of_node

NODE = 8
"""Ranks on a node, if nobody says otherwise: most nodes have so many devices."""


@dataclass(frozen=True)
class NetworkRequest:
    """The options, each None if it is not given."""

    ranks: int | None = None
    link: str | None = None
    replicas: int | None = None
    replica_link: str | None = None
    node_ranks: int | None = None

    @property
    def named(self) -> str | None:
        """The first option that is given, None if none is."""
        given = (name for name, value in vars(self).items() if value is not None)
        return next((f"--{name.replace('_', '-')}" for name in given), None)

    def peers(self, known: Peers | None, default: str | None) -> Peers:
        """Return the network. known: that of the machine file. default: the name of another one, if neither
        is given.

        Raises InputError, one line.
        """
        if self.replica_link is not None and self.replicas is None:
            raise InputError("--replica-link goes with --replicas: --replicas 2 --replica-link eth100")
        if known is not None and self.link is None:
            if self.ranks not in (None, known.ranks) or self.replicas is not None:
                raise InputError(
                    f"the machine file has a network of {known.ranks} ranks: give --ranks {known.ranks} "
                    "without --replicas, or give --link too"
                )
            return known
        if self.ranks is None:
            raise InputError(
                "how many ranks? Give --ranks 8, or --machine with a file that has a network (plan machine "
                "--network)"
            )
        link = self.link or default
        if link is None:
            raise InputError(f"--ranks {self.ranks}: give their network too: --link {'|'.join(NETWORKS)}")
        peers = find_network(link, self.ranks)
        if self.replicas is None:
            return peers
        return replace(peers, replicas=find_replicas(self.replica_link or link, self.replicas))

    def machine_of_rank(self, machine: Machine, peers: Peers) -> Machine:
        """Return what a rank has of a node's machine, with the network."""
        part = part_of_node(machine, self.node_ranks or min(peers.ranks, NODE))
        # A network of the machine file shares what the file says.
        return sharing(part, peers, Way.OWN if self.link is None else way_of(self.link))
