"""LoHan's iteration time as a function of what is swapped: equations 1 to 5, corrected.

Liao et al., "LoHan: low-cost high-performance framework to fine-tune 100B model on a consumer GPU"
(arXiv:2403.06504), section IV-D.

| paper                  | here                 |                                                            |
|------------------------|----------------------|------------------------------------------------------------|
| FLOP_f / THP_G         | forward              | seconds                                                    |
| 2 FLOP_f / THP_G       | backward             | seconds, as the graph has it                               |
| FLOP_r / THP_G         | recomputed           | seconds of what is recomputed                              |
| A_G2M                  | swapped              | bytes of activations that leave the device                 |
| 2 P (P16)              | weights              | bytes fetched in each pass                                 |
| 2 P (G16)              | gradients            | bytes                                                      |
| 14 P (P32, OS32, P16)  | states               | bytes that an update reads and writes                      |
| MEM_M^avail            | room                 | bytes of host memory left for activations                  |
| BW_G                   | d2h, h2d             | bytes/s, each direction                                    |
| BW_S2M, BW_M2S         | disk_read, disk_write| bytes/s                                                    |

Corrected: (3) the share on disk is max(0, A - MEM), not A - MEM, whose name (4) changes to MEM_CPU; (5) lacks
the CPU's own time, which limits a weak CPU and here is a fifth term. Without a disk its terms are nothing.
The paper's disk reads or writes: in (4) and (5) its seconds add up. Here links share what the machine says
(`lanes`); a disk of which it says nothing does both at once, each at its rate. `on_device`: the bytes of what
is swapped that the device has room for after all, in the paper none. `late`: updates after backward are a
third stage, in which the disk brings and takes the states (section III-B, figure 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ....graphs.machine import Link, Machine, Memory
from ....planner.simulator.clock import Lanes, Queue, held_seconds, lanes_of
from ..layers.training import TrainingLayers

_NOTHING_SHARED = lanes_of(Machine().hierarchy)


@dataclass(frozen=True)
class Traffic:
    """The table above, with `update`: the CPU's seconds."""

    forward: float
    backward: float
    update: float
    weights: int
    gradients: int
    states: int
    room: float
    d2h: float
    h2d: float
    disk_read: float = inf
    disk_write: float = inf
    lanes: Lanes = _NOTHING_SHARED
    on_device: int = 0
    late: bool = False

    def forward_seconds(self, swapped: int) -> float:
        """Return the seconds of the forward part by (2), (4)."""
        # What the device has room for crosses no link.
        swapped = max(0, swapped - self.on_device)
        on_disk = max(0.0, swapped - self.room)  # (3)
        return max(self.forward, self._copies(swapped, self.weights, self.weights, on_disk))

    def backward_seconds(self, swapped: int, recomputed: float) -> float:
        """Return the seconds of the backward part by (5)."""
        swapped = max(0, swapped - self.on_device)
        on_disk = max(0.0, swapped - self.room)
        computed, up = self.backward + recomputed, self.weights + swapped
        if self.late:
            # Late: the disk brings only weights and activations here; the states are the third stage's.
            return max(computed, self._copies(self.gradients, up, self.weights + on_disk, 0))
        copies = self._copies(self.gradients, up, self.states + on_disk, self.states, self.update)
        return max(computed, copies)

    def update_seconds(self) -> float:
        """Return the seconds of updates after backward; 0 if updates run alongside it."""
        return self._copies(0, 0, self.states, self.states, self.update) if self.late else 0.0

    def _copies(self, down: float, up: float, read: float, written: float, on_cpu: float = 0.0) -> float:
        """Return the seconds of so many bytes on each link, and of the CPU's work at the same time."""
        seconds = {
            Queue.D2H: down / self.d2h,
            Queue.H2D: up / self.h2d,
            Queue.DISK_READ: read / self.disk_read,
            Queue.DISK_WRITE: written / self.disk_write,
            Queue.CPU: on_cpu,
        }
        return held_seconds(self.lanes, seconds)

    def seconds(self, swapped: int, recomputed: float) -> float:
        """Return the seconds of an iteration by (1)."""
        passes = self.forward_seconds(swapped) + self.backward_seconds(swapped, recomputed)
        return passes + self.update_seconds()


def traffic_of(
    layers: TrainingLayers,
    machine: Machine,
    states: Memory,
    in_flight: int,
    *,
    on_device: int = 0,
    late: bool = False,
) -> Traffic:
    """Return the figures of the iteration in the paper's terms.

    states: the memory of weights and optimizer states.
    in_flight: number of layers as large as the largest whose model states the host holds alongside
    activations.
    on_device: bytes of swapped activations that stay after all. late: updates run after backward.
    """
    graph, links = layers.graph, machine.links
    runs = layers.host_modes(layers.updates) or []
    kept = [*layers.weights, *layers.states]
    largest = max(layers.size((*layer.weights, *layer.states, *layer.gradients)) for layer in layers.layers)
    # The states of some layers pass through the host even if they lie on the disk.
    extra = in_flight * largest + (layers.size(kept) if states == Memory.HOST else 0)
    room = inf if machine.host_capacity is None else max(0, machine.host_capacity - extra)
    # Activations cross the link, so they are pinned.
    room = room if machine.pinned is None else min(room, machine.pinned)
    on_disk = states == Memory.DISK

    def rate(link: Link | None, tensors: Sequence[int]) -> float:
        """Return the link's bytes/s for these tensors, one by one; activations are taken to be as large."""
        return link.rate_of(graph.tensors.bytes[list(tensors)].tolist()) if link else inf

    return Traffic(
        forward=sum(layers.seconds(layer.forward) for layer in layers.layers),
        backward=sum(layers.seconds(layer.backward) for layer in layers.layers),
        update=sum(graph.seconds(o, mode) for o, mode in runs),
        weights=layers.size(layers.weights),
        gradients=layers.size(layers.gradients),
        states=layers.size(kept),
        room=room,
        d2h=rate(links.d2h, layers.gradients),
        h2d=rate(links.h2d, layers.weights),
        disk_read=rate(links.disk_read, kept) if on_disk else inf,
        disk_write=rate(links.disk_write, kept) if on_disk else inf,
        lanes=lanes_of(machine.hierarchy),
        on_device=on_device,
        late=late,
    )
