"""Addresses of pinned copies on the host: in the smallest block of memory that costs no time."""

from __future__ import annotations

from dataclasses import replace

from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..schedule.schedule import Schedule, Verb
from ..simulator.pinned import PINNED
from ..simulator.simulate import simulate
from .addresses import lay_out, rows_of
from .layout import Layout
from .room import least_room

PAGE = 4096
"""Bytes. A disk takes memory that begins at one without a copy in between (devices/storage/disk.py)."""

_TOLERANCE = 1e-3
"""Share of an iteration's time that less memory may cost."""

_LOOSE, _EFFORT = 1.02, 50_000_000
"""Slack: the factor by which addresses may exceed the bytes, and the effort to reach it: half a second."""


def pinned_room(graph: Graph, schedule: Schedule, *, budget: int | None, machine: Machine) -> int:
    """Return the fewest bytes of pinned host memory with which the schedule is as fast as with all there is.

    A thousandth of the time is allowed for. Raises InvalidScheduleError.
    """
    figures = simulate(graph, schedule, budget=budget, machine=machine).figures
    slowest = figures.time * (1 + _TOLERANCE)

    def holds(room: int) -> bool:
        less = replace(machine, pinned=room)
        return simulate(graph, schedule, budget=budget, machine=less).figures.time <= slowest

    return least_room(figures.least_pinned, figures.pinned_peak, holds)


def pinned_layout(
    graph: Graph, schedule: Schedule, *, budget: int | None, machine: Machine
) -> tuple[Machine, Layout]:
    """Return the machine with no more pinned memory than is needed, and the layout of the pinned copies in
    it.

    The layout may take somewhat more: copies are placed as they fit. If a disk is used they begin at whole
    pages,
    provided that takes little more: the disk then takes them without a copy. Raises InvalidScheduleError.
    """
    room = pinned_room(graph, schedule, budget=budget, machine=machine)
    less = replace(machine, pinned=room)
    target = int(room * _LOOSE) if machine.pinned is None else min(machine.pinned, int(room * _LOOSE))
    rows = rows_of(graph, schedule, PINNED, budget=budget, machine=less)
    layout = lay_out(rows, target, _EFFORT)
    to_disk = (schedule.verbs == Verb.OFFLOAD) & (schedule.wheres == Memory.DISK)
    if to_disk.any() or schedule.initial.on(Memory.DISK):
        most, limit = int(layout.size * _LOOSE), machine.pinned
        # Pages must not be the reason to exceed the machine's pinned memory.
        most = most if limit is None else min(most, max(limit, layout.size))
        paged = rows.rounded(PAGE)
        # Their sum is a lower bound: without it a search that can't succeed would take its whole effort.
        if paged.live().max(initial=0) <= most and (found := lay_out(paged, most, _EFFORT)).size <= most:
            return less, found
    return less, layout
