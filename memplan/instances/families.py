"""Families of generated instances: functions by name, which make a graph of the catalogue's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..graphs.errors import InputError
from ..graphs.generators import chain, layered, unet
from ..graphs.graph import Graph
from ..graphs.machine import Links, Machine, Updates
from ..graphs.machines.gpus import GIB
from ..graphs.machines.presets import find_preset
from .checkpoints import checkpoint_chain
from .models import model_named
from .three_partition import solvable, unsolvable
from .tiny import tiny_graph
from .training import Rates, Training
from .transformer import transformer

COMPUTE_SHARE, BANDWIDTH_SHARE = 0.7, 0.8
"""Attained shares of a data sheet's rates."""
FROZEN = {
    # Updates: bandwidth over the passes of AdamW, and the thesis' host, as presets.py has them.
    "a100-40gb": Machine(
        40 * GIB, links=Links(25.2e9, 25.2e9), updates=Updates(1555e9 / (360e9 / 16.6e9), 1.1e9)
    )
}
"""Machines of instances as they were published: what is known of a GPU gets better, an instance stays."""


def partition(count: int, total: int, seed: int = 0, *, exists: bool) -> Graph:
    """Return a graph of numbers with a 3-partition, or without one. count: m. total: V."""
    return (solvable if exists else unsolvable)(count, seed, total).graph()


def decoder(model: str, machine: str, batch: int, sequence: int = 512) -> Graph:
    """Return the training of a language model in bfloat16 with Adam, estimated for a GPU's data sheet.

    Updates run in backward; their rates are those of float32, in elements per second. Raises InputError for
    an unknown name.
    """
    gpu, on = find_preset(machine).gpu, FROZEN.get(machine) or find_preset(machine).machine
    updates = on.updates
    if not (gpu.bfloat16 and updates.device and updates.host):
        raise InputError(f"{machine}: its rates of bfloat16 or of updates are not known")
    # Rates of updates are in bytes: bfloat16 has half of float32's, at as many elements per second.
    rates = Rates(
        COMPUTE_SHARE * gpu.bfloat16, updates.device / 2, updates.host / 2, BANDWIDTH_SHARE * gpu.bandwidth
    )
    graph = transformer(model_named(model), Training(batch, sequence), rates)
    return replace(graph, machine=on)


FAMILIES: dict[str, Callable[..., Graph]] = {
    "chain": chain,
    "checkpoints": checkpoint_chain,
    "decoder": decoder,
    "layered": layered,
    "partition": partition,
    "tiny": tiny_graph,
    "unet": unet,
}
