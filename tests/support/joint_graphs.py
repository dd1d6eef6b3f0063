"""Small graphs for the joint search, trained ones and others, and a machine with links."""

from __future__ import annotations

from memplan.graphs.generators import chain, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import ADAMW, SGD, with_updates

MiB = 2**20
LINKED = Machine(links=Links(d2h=2.0 * MiB, h2d=3.0 * MiB))


def trained(blocks: int, seed: int) -> Graph:
    """A chain with AdamW on either side of the bus."""
    plain = chain(blocks, seed=seed)
    return with_updates(
        plain, optimizer=ADAMW, when="in-backward", device_rate=20.0 * MiB, host_rate=2.0 * MiB
    )


GRAPHS = {
    "chain": chain(5, seed=3),
    "trained": trained(4, 1),
    "after": with_updates(
        chain(3, seed=5), optimizer=SGD, when="after", device_rate=9.0 * MiB, host_rate=1.0 * MiB
    ),
    "unet": unet(2),
}
