"""Uncertainty of an estimate: low, expected and high figures for a batch's memory and time.

memory   low        the tensors alone
         expected   and the workspaces of kernels, and what cuBLAS keeps
         high       and the largest workspaces a kernel may choose; without a plan also what is free between
                    the blocks of PyTorch's caching allocator, whose rules are replayed. A plan leaves nothing
                    free there: `plan solve --static-layout` gives each tensor its place within the budget
time     low        at the data sheet's full rates: COMPUTE_EFFICIENCY, 0.7, of expected. No bound: an RTX
                    4090 was seen at 1.08 of its tensor cores' rate
         expected   the roofline's, at 0.7 and 0.8 of the rates
         high       twice expected: the roofline's own word for its error on one operation

Of the GPU's memory a reserve is left for what else runs there, a screen for instance: RESERVE of what a
process can allocate, unless the user says otherwise. The shares of time are rules of thumb and no
measurements: benchmarks/results/published.md has how often published figures lay between the ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ..addresses.lifetimes import WORKSPACE, Lifetimes, lifetimes
from ..schedule.schedule import Schedule

RESERVE = 0.01
"""Error correction, driver and context are not in the capacity any more (graphs/machines/gpus.py)."""
FASTEST, SLOWEST = 0.7, 2.0


class Span(NamedTuple):
    low: float
    expected: float
    high: float


def time_span(seconds: float) -> Span:
    return Span(FASTEST * seconds, seconds, SLOWEST * seconds)


def memory_span(
    graph: Graph,
    worst: Graph,
    schedule: Schedule,
    budget: int,
    machine: Machine,
    constant: int,
    reserved: Callable[[Lifetimes], int] | None,
) -> Span:
    """Return the low, expected and high device bytes of a schedule.

    worst: the graph with the largest workspaces. budget: bytes that the schedule fits in.
    machine: with a device of any size. constant: bytes that cuBLAS keeps.
    reserved: what an allocator takes for such blocks; None: no more.
    """
    rows = lifetimes(graph, schedule, budget=budget, machine=machine)
    tensors, all_there = rows.of(rows.tensor != WORKSPACE), int(rows.live().max(initial=0))
    room = budget + int((worst.operations.workspace - graph.operations.workspace).max(initial=0))
    at_worst = lifetimes(worst, schedule, budget=room, machine=machine)
    high = int(at_worst.live().max(initial=0))
    if reserved is not None:
        high = max(high, reserved(at_worst))
    return Span(int(tensors.live().max(initial=0)), all_there + constant, high + constant)


def usable(memory: int, reserve: int | None) -> int:
    """Return the bytes of the device's memory that a plan may use.

    memory: the device's bytes. reserve: bytes left free; None for the share RESERVE of them.
    """
    kept = int(RESERVE * memory) if reserve is None else reserve
    return max(0, memory - kept)
