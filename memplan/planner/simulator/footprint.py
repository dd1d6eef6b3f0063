"""Where the bytes of a copy count, and how many they are.

A copy on the peers is spread over all ranks: its share of it lies on the device, in whose memory it counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graphs.graph import Graph
from ...graphs.machine import Hierarchy, Memory

_DEVICE, _PEERS = int(Memory.DEVICE), int(Memory.PEERS)


class Footprint:
    """The bytes of each tensor's copies.

    sizes: bytes of the tensors. spread: per tensor whether its lower memory is the peers. shares: bytes per
    device of copies there; without a network between ranks a device has all of it.
    """

    def __init__(self, graph: Graph, hierarchy: Hierarchy) -> None:
        self.sizes: list[int] = graph.tensors.bytes.tolist()
        self.spread: Sequence[bool] = graph.spread.tolist()
        peers = hierarchy.peers
        tensors = graph.tensors
        self.shares = {x: tensors.share_of(x, peers) if peers else self.sizes[x] for x in tensors.spread}

    def of(self, x: int, memory: int) -> tuple[int, int]:
        """Return the memory in which the bytes of a copy count, and their number."""
        if memory == _PEERS and self.spread[x]:
            return _DEVICE, self.shares[x]
        return memory, self.sizes[x]
