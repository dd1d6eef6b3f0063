"""Uncertainty of an estimate: low, expected and high figures for a batch's memory and time.

memory   low        the tensors alone
         expected   and the workspaces of kernels, and what cuBLAS keeps
         high       and the largest workspaces a kernel may choose; without a plan also what is free between
                    the blocks of PyTorch's caching allocator, whose rules are replayed, and LOOSE of it: what
                    loops hold besides, the model's outputs for instance. A plan leaves nothing free there:
                    `plan solve --static-layout` gives each tensor its place within the budget
time     expected   by the roofline with fitted efficiencies (profiling/profile/efficiency.py)
         low, high  divided and multiplied by WITHIN, the factor within which 90 % of published iterations
                    are wanted: benchmarks/results/published.md has how many are, in a half of the rows that
                    nothing was fitted to

Of the GPU's memory a reserve is left for what else runs there, a screen for instance: RESERVE of what a
process can allocate, unless the user says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..graphs.arrays import Ints
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.addresses.lifetimes import (
    WORKSPACE,
    Lifetimes,
    lifetimes,
    lifetimes_without_transfers,
    stays_on_device,
)
from ..planner.schedule.schedule import DEFAULT_MODE, Schedule, Verb
from ..planner.simulator.simulate import Replay, replay_of
from ..solvers.offloading.sharded.unit_lifetimes import unit_lifetimes, workspace_by_tick

RESERVE = 0.01
"""Error correction, driver and context are not in the capacity any more (graphs/machines/gpus.py)."""
WITHIN = 1.4
LOOSE = 0.12
"""Of published peaks 90 % are below the high end so; without it 80 %."""


class Span(NamedTuple):
    low: float
    expected: float
    high: float


def time_span(seconds: float) -> Span:
    return Span(seconds / WITHIN, seconds, WITHIN * seconds)


def memory_span(
    graph: Graph,
    worst: Graph,
    schedule: Schedule,
    budget: int,
    machine: Machine,
    constant: int,
    reserved: Callable[[Lifetimes], int] | None,
    replay: Replay | None = None,
) -> Span:
    """Return the low, expected and high device bytes of a valid schedule.

    worst: the graph with the largest workspaces. budget: bytes that the schedule fits in.
    machine: with a device of any size. constant: bytes that cuBLAS keeps.
    reserved: what an allocator takes for such blocks; None: no more.
    replay: the schedule's, on this machine within this budget, if it is known.
    """
    # Workspaces move nothing: each is there while its step runs.
    more = np.zeros(len(schedule), np.int64)
    # Workspaces are of the default variant: others, as on the host, have their own.
    runs = np.flatnonzero((schedule.verbs == Verb.COMPUTE) & (schedule.wheres == DEFAULT_MODE))
    more[runs] = _more_workspace(graph, worst)[schedule.targets[runs]]
    alone = stays_on_device(graph, schedule)
    if reserved is None and not alone:
        found = replay or replay_of(graph, schedule, budget=budget, machine=machine)
        curve = found.device_curve
        return Span(
            int((curve - found.workspace_curve).max(initial=0)),
            int(curve.max(initial=0)) + constant,
            int((curve + more).max(initial=0)) + constant,
        )
    rows = (
        lifetimes_without_transfers(graph, schedule)
        if alone
        else lifetimes(graph, schedule, budget=budget, machine=machine)
    )
    return _span(rows, more, constant, reserved)


def units_span(
    graph: Graph,
    worst: Graph,
    schedule: Schedule,
    constant: int,
    reserved: Callable[[Lifetimes], int],
) -> Span:
    """Return the low, expected and high device bytes of FSDP2 itself, with its buffers for whole units.

    schedule: of one of its policies. The others are as for `memory_span`.
    """
    more = workspace_by_tick(graph, schedule, _more_workspace(graph, worst))
    return _span(unit_lifetimes(graph, schedule), more, constant, reserved)


def _more_workspace(graph: Graph, worst: Graph) -> Ints:
    return worst.operations.workspace - graph.operations.workspace


def _span(rows: Lifetimes, more: Ints, constant: int, reserved: Callable[[Lifetimes], int] | None) -> Span:
    """Return the bytes of lifetimes. more: what the largest workspaces have in addition, per step."""
    tensors, all_there = rows.of(rows.tensor != WORKSPACE), int(rows.live().max(initial=0))
    at_worst = rows.with_more_workspace(more)
    high = int(at_worst.live().max(initial=0))
    if reserved is not None:
        high = loop_high_end(max(high, reserved(at_worst)))
    return Span(int(tensors.live().max(initial=0)), all_there + constant, high + constant)


def loop_high_end(reserved: int) -> int:
    """Return the high end of a loop without a plan. reserved: what the allocator takes, in bytes."""
    return int((1 + LOOSE) * reserved)


def usable(memory: int, reserve: int | None) -> int:
    """Return the bytes of the device's memory that a plan may use.

    memory: the device's bytes. reserve: bytes left free; None for the share RESERVE of them.
    """
    kept = int(RESERVE * memory) if reserve is None else reserve
    return max(0, memory - kept)
