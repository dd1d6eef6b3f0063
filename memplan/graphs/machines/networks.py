"""Networks between the ranks of sharded training, by name.

A rate is what a device receives in a second while all ranks gather or scatter (NCCL's bus bandwidth): a
share of what the data sheet says of one direction, by a rule of thumb. A latency is that of one collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..errors import InputError
from ..machine import Peers, Replicas
from ..units import check_rate_unit, duration, format_rate, parse_rate, parse_seconds

LATENCY = 30e-6
"""Seconds that a collective of a few ranks takes besides its bytes."""


@dataclass(frozen=True)
class Network:
    """A named network. rate: bytes/s that a device receives. source: where it comes from."""

    name: str
    rate: float
    source: str
    latency: float = LATENCY

    def peers(self, ranks: int) -> Peers:
        return Peers(self.rate, self.latency, ranks=ranks)


_KNOWN = (
    Network("nvlink", 350e9, "NVLink 4 of an H100: 450 GB/s each way, 78 % of it"),
    Network("pcie5", 40e9, "PCIe 5.0 x16: 63 GB/s each way, 64 % of it, through the host"),
    Network("pcie4", 20e9, "PCIe 4.0 x16: 31.5 GB/s each way, 64 % of it, through the host"),
    Network("ib400", 45e9, "InfiniBand NDR, 400 Gbit/s a GPU, 90 % of it"),
    Network("eth100", 11e9, "Ethernet, 100 Gbit/s a GPU, 88 % of it"),
)
NETWORKS = {network.name: network for network in _KNOWN}


def find_replicas(text: str, count: int) -> Replicas:
    """Return so many replicas, joined by a network as `find_network` reads it. Raises InputError."""
    if count < 2:
        raise InputError(f"{count} replicas: give the number of sets of ranks that train together, 2 or more")
    link = find_network(text, 1)  # only its rate and latency are taken
    return Replicas(link.rate, link.latency, count=count)


def find_network(text: str, ranks: int) -> Peers:
    """Return the network of a name, or of a rate and a latency: 'nvlink', '45GB/s', '45GB/s,30us'.

    ranks: devices that share it. Raises InputError, one line.
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks: give the number of devices that train together, like 8")
    name = text.strip().lower()
    if name in NETWORKS:
        return NETWORKS[name].peers(ranks)
    rate, _comma, latency = name.partition(",")
    try:
        peers = Peers(parse_rate(rate), parse_seconds(latency) if latency else LATENCY, ranks=ranks)
    except (InputError, ValueError):
        close = get_close_matches(name, NETWORKS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(NETWORKS)}, or '45GB/s,30us'"
        raise InputError(f"no network is called {text!r}: {hint}") from None
    try:
        check_rate_unit(rate)
    except InputError as error:
        raise InputError(f"network {text!r}: {error}") from None
    return peers


def network_rows(peers: Peers) -> Iterator[tuple[str, str]]:
    """Yield labels and texts of a network between ranks, and of that between replicas."""
    ranks = f"{peers.ranks} {'rank' if peers.ranks == 1 else 'ranks'}"
    yield "between ranks", f"{ranks}, {format_rate(peers.rate)}, {duration(peers.latency)} a collective"
    if (replicas := peers.replicas) is not None:
        latency = f"{duration(replicas.latency)} an all-reduce"
        yield "between replicas", f"{replicas.count} replicas, {format_rate(replicas.rate)}, {latency}"


def replicas_document(replicas: Replicas | None) -> dict[str, Any] | None:
    """Return replicas as JSON has them."""
    if replicas is None:
        return None
    return {"count": replicas.count, "rate": replicas.rate, "latency": replicas.latency}
