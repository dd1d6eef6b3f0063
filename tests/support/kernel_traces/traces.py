"""Kernel traces of training iterations as another tool would dump them, made by seed.

What they have: kernels in the order in which they ran, with seconds, and the tensors that they touch. What
they lack: names that mean anything, layers, modes, at times all word of forward and backward. Times are as
skewed and sizes as spread as in the traces that tensor migration is published with: most kernels take
hundredths of milliseconds or tenths, some gradient products a hundred times as long, which makes backward
nine tenths of all; a few tensors are large, most small. Nothing of those traces is copied.

    tape.py      forward kernels recorded, and their gradients and updates
    bodies.py    what is trained

Reference for the shape: Zhang, Zhou, Xue, Liu, Huang, G10, MICRO 2023, arXiv:2310.09443, figures 2 to 4 and
the traces of its artifact (github.com/platformxlab/G10): BERT, ViT and ResNet-152 have 1,369, 1,489 and 1,299
kernels of 0.01 to 670 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.errors import InputError
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Link, Links, Machine

from .bodies import BODIES
from .tape import Tape

LATENCY = 1e-5
"""Seconds that a copy takes besides its bytes."""


@dataclass(frozen=True)
class Trace:
    """body: transformer, bottlenecks or cells. kernels: at least; a block more at most. shared: so many
    blocks in a row have the same weights, 0: all. phases, recompute, in_place, states: see tape.py.

    reach: how often each link moves the bytes of all tensors in the time of all kernels. host: its capacity,
    in bytes of all tensors; None for no limit. disk: rate of its links over those between host and device;
    None for no disk.
    """

    body: str
    seed: int = 0
    kernels: int = 1300
    shared: int = 1
    phases: bool = False
    recompute: bool = False
    in_place: bool = False
    states: int = 0
    reach: float = 1.0
    host: float | None = None
    disk: float | None = None

    def __post_init__(self) -> None:
        if self.body not in BODIES:
            raise InputError(f"body must be {', '.join(BODIES)}, not {self.body!r}")

    @property
    def name(self) -> str:
        return f"{self.body}-seed{self.seed}"


def kernel_trace(trace: Trace) -> Graph:
    """With its machine, whose device has no capacity of its own. The loss is the only result."""
    draft, random = Draft(trace.name), Random(trace.seed)
    tape = Tape(draft, random, trace.phases, trace.recompute, trace.in_place, trace.states)
    loss = tape.backward(BODIES[trace.body](tape, trace.kernels, trace.shared))
    graph = draft.graph([loss])
    return replace(graph, machine=_machine(trace, graph))


def _machine(trace: Trace, graph: Graph) -> Machine:
    total = int(graph.tensors.bytes.sum())
    rate = float(f"{trace.reach * total / fsum(graph.operations.time):.3g}")
    bus = Link(rate, LATENCY)
    disk = Link(trace.disk * rate, LATENCY) if trace.disk else None
    host = None if trace.host is None else int(trace.host * total)
    return Machine(host_capacity=host, links=Links(bus, bus, disk, disk))
