"""Networks between the ranks of sharded training, by name.

A rate is what a device receives in a second while all ranks gather or scatter (NCCL's bus bandwidth): a
share of what the data sheet says of one direction, by a rule of thumb. A latency is that of one collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from ..errors import InputError
from ..machine import JointRate, Machine, Peers, Replicas
from ..units import check_rate_unit, duration, format_rate, parse_rate, parse_seconds

LATENCY = 30e-6
"""Seconds that a collective of a few ranks takes besides its bytes."""


class Way(StrEnum):
    """Which wires of a device its gathers and scatters take.

    OWN: wires of the network alone, such as NVLink. SLOT: the device's slot, both directions of it at once,
    for a ring sends as much as it receives; copies to and from the host wait. ADAPTER: the slot up to a
    network adapter, which is slower than the slot and leaves the rest of it to copies.
    """

    OWN = "own"
    SLOT = "slot"
    ADAPTER = "adapter"


@dataclass(frozen=True)
class Network:
    """A named network. rate: bytes/s that a device receives. source: where it comes from."""

    name: str
    rate: float
    source: str
    way: Way
    latency: float = LATENCY

    def peers(self, ranks: int) -> Peers:
        return Peers(self.rate, self.latency, ranks=ranks)


_KNOWN = (
    Network("nvlink", 350e9, "NVLink 4 of an H100: 450 GB/s each way, 78 % of it", Way.OWN),
    Network("pcie5", 40e9, "PCIe 5.0 x16: 63 GB/s each way, 64 % of it, over the slot", Way.SLOT),
    # Between RTX 4090: 20.7 GB/s each way with peer access, 12.9 without it (tinygrad/open-gpu-kernel-modules
    # on GitHub, issue 6).
    Network("pcie4", 20e9, "PCIe 4.0 x16: 31.5 GB/s each way, 64 % of it, over the slot", Way.SLOT),
    Network("ib400", 45e9, "InfiniBand NDR, 400 Gbit/s a GPU, 90 % of it", Way.ADAPTER),
    Network("eth100", 11e9, "Ethernet, 100 Gbit/s a GPU, 88 % of it", Way.ADAPTER),
)
NETWORKS = {network.name: network for network in _KNOWN}


def find_replicas(text: str, count: int) -> Replicas:
    """Return so many replicas, joined by a network as `find_network` reads it. Raises InputError."""
    if count < 2:
        raise InputError(f"{count} replicas: give the number of sets of ranks that train together, 2 or more")
    link = find_network(text, 1)  # only its rate and latency are taken
    return Replicas(link.rate, link.latency, count=count)


def way_of(text: str) -> Way:
    """Return which wires a network takes that `find_network` reads; a bare rate says nothing: its own."""
    name = text.strip().lower()
    if name in NETWORKS:
        return NETWORKS[name].way
    return next((way for way in Way if name.endswith(f",{way}")), Way.OWN)


def sharing(machine: Machine, peers: Peers, way: Way) -> Machine:
    """Return the machine of a rank with its network, and what that shares with the links to the host.

    The network between replicas is not counted. What the machine says of `peers` already stays.
    """
    found = replace(machine, links=replace(machine.links, peers=peers))
    groups = (*found.shared, *(joint.links for joint in found.joint_rates))
    if way == Way.OWN or any("peers" in group for group in groups):
        return found
    ends = [(name, link) for name in ("d2h", "h2d") if (link := getattr(machine.links, name)) is not None]
    if way == Way.SLOT:
        return replace(found, shared=(*found.shared, *((name, "peers") for name, _link in ends)))
    # The rate of copies is what a direction of the slot carries.
    slot = (JointRate((name, "peers"), max(link.rate, peers.rate)) for name, link in ends)
    return replace(found, joint_rates=(*found.joint_rates, *slot))


def find_network(text: str, ranks: int) -> Peers:
    """Return the network of a name, or of a rate: 'nvlink', '45GB/s', '45GB/s,30us', '20GB/s,30us,slot'.

    ranks: devices that share it. Raises InputError, one line.
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks: give the number of devices that train together, like 8")
    name = text.strip().lower()
    if name in NETWORKS:
        return NETWORKS[name].peers(ranks)
    bare = next((name.removesuffix(f",{way}") for way in Way if name.endswith(f",{way}")), name)
    rate, _comma, latency = bare.partition(",")
    try:
        peers = Peers(parse_rate(rate), parse_seconds(latency) if latency else LATENCY, ranks=ranks)
    except (InputError, ValueError):
        close = get_close_matches(name, NETWORKS, 1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"one of {', '.join(NETWORKS)}, or '45GB/s,30us', or '20GB/s,slot'"
        )
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
