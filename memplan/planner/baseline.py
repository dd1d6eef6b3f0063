"""The baseline of every report: all operations once, in traced order, each tensor deleted after its last
use.

In sharded training the weights are gathered just before their first use, and stay until they change, by a
network that takes no time.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum, inf, isfinite
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..graphs.graph import Graph, Structure
from ..graphs.machine import Links, Machine, Peers
from .residency.prefetch_placement import build_schedule
from .residency.residency import Residency
from .schedule.schedule import Schedule
from .schedule.sequence import in_default_mode, schedule_of
from .simulator.simulate import Figures, simulate

WHOLE = "whole"
"""Key in the `source` of a graph with regions in pieces: time and peak of the baseline without them."""

_schedules: WeakKeyDictionary[Graph | Structure, Schedule] = WeakKeyDictionary()
_known: WeakKeyDictionary[Graph, Figures] = WeakKeyDictionary()


def baseline_schedule(graph: Graph) -> Schedule:
    """Return the baseline: what eager PyTorch does, if it freed every tensor after its last use."""
    spread = bool(graph.tensors.spread)
    key = graph if spread else graph.structure  # where gathers come depends on bytes and times too
    if key not in _schedules:
        runs = in_default_mode(range(len(graph.operations)))
        _schedules[key] = build_schedule(graph, Residency(runs)) if spread else schedule_of(graph, runs)
    return _schedules[key]


def baseline(graph: Graph) -> Figures:
    """Return time and peak of the baseline on a device of any size, as the simulator does, once per graph."""
    if graph not in _known:
        _known[graph] = _sharded_figures(graph) if graph.tensors.spread else _figures(graph)
        if graph.operations.comm:  # in as much memory as if collectives did not overlap
            schedule, size = baseline_schedule(graph), _known[graph].peak
            _known[graph] = simulate(graph, schedule, budget=size, machine=Machine()).figures
    return _known[graph]


def whole_baseline(graph: Graph) -> Figures:
    """Return time and peak of the baseline with whole operations, for a graph that has regions in pieces.

    Such a graph records them in its `source`; for any other they are those of its own baseline.
    """
    found = baseline(graph)
    # Earlier files have the peak alone, with the budget for which operations run in pieces.
    recorded: Any = graph.source.get(WHOLE) or graph.source.get("within")
    if not isinstance(recorded, dict):
        return found
    time, peak = recorded.get("time", found.time), recorded.get("peak")  # pyright: ignore
    if isinstance(time, int | float) and isfinite(time) and time > 0 and isinstance(peak, int) and peak > 0:
        return replace(found, time=float(time), peak=peak)
    return found


def whole_document(graph: Graph) -> dict[str, Any]:
    """Return what the `source` of a graph with regions of this one in pieces says of its baseline."""
    found = baseline(graph)
    return {WHOLE: {"time": found.time, "peak": found.peak}}


def any_size(graph: Graph) -> Machine:
    """Return a machine of any size, without links; a graph that is sharded has its ranks, and a network that
    takes no time."""
    ranks = graph.machine.links.peers.ranks if graph.machine and graph.machine.links.peers else 1
    return Machine(links=Links(peers=Peers(inf, ranks=ranks))) if graph.tensors.spread else Machine()


def _sharded_figures(graph: Graph) -> Figures:
    return simulate(graph, baseline_schedule(graph), machine=any_size(graph)).figures


def _figures(graph: Graph) -> Figures:
    """Compute the figures from the operations between which each tensor is there: no step waits for any."""
    operations, sizes, count = graph.operations, graph.tensors.bytes, len(graph.operations)
    first, last = np.full(len(sizes), count), np.full(len(sizes), -1)
    rows, made = operations.writes.rows(), operations.writes.columns
    np.minimum.at(first, made, rows)
    for uses in (operations.reads, operations.mutates):
        np.maximum.at(last, uses.columns, uses.rows())
    last[list(graph.results)] = count  # results stay
    used = ~graph.resident & (first <= last)
    # A contribution to what nobody uses is deleted at once, before the next one is made.
    unused = ~graph.resident[made] & (last[made] < 0)
    changes = np.zeros(count + 2, np.int64)
    for begin, end, size in (
        (first[used], last[used] + 1, sizes[used]),
        (rows[unused], rows[unused] + 1, sizes[made[unused]]),
    ):
        np.add.at(changes, begin, size)
        np.subtract.at(changes, end, size)
    always = int(sizes[graph.resident].sum())
    running = always + changes.cumsum()[:count] + operations.workspace
    peak = max(always, int(running.max(initial=0)))
    seconds = max(fsum(operations.time.tolist()), fsum(operations.launch.tolist()))
    return Figures(seconds, peak, peak, host_peak=0, disk_peak=0)
