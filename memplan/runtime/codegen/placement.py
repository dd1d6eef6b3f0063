"""Planned address of each allocation on the device: its bytes, and its offset in the device's arena.

What is resident all the time is the caller's, and is not in the arena, nor are the loss and the norm, which
callers keep. The arena begins at the lowest offset of what comes and goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...devices.device.planned_arena import Request
from ...graphs.machine import Memory
from ...planner.addresses.layout import Layout
from ...planner.addresses.lifetimes import WORKSPACE
from ...planner.schedule.schedule import Schedule, Verb
from ...program.program import Program

NOWHERE: Request = (0, 0)


class Placement:
    """Planned bytes and arena offset of each allocation on the device.

    size: bytes of the arena; 0 if nothing comes and goes.
    """

    def __init__(self, program: Program, schedule: Schedule, layout: Layout) -> None:
        rows = layout.lifetimes
        deletes = (schedule.verbs == Verb.DELETE) & (schedule.wheres == Memory.DEVICE)
        residents = {program.values[value].storage for value in program.residents}
        stays = np.array(sorted(residents.difference(schedule.targets[deletes].tolist())), np.int64)
        comes = ~np.isin(rows.tensor, stays)
        low = int(layout.offsets[comes].min(initial=layout.size))
        self.size = int((layout.offsets + rows.size)[comes].max(initial=low)) - low
        scalars = (program.loss, program.norm, program.infinite)
        kept = {program.values[value].storage for value in scalars if value is not None}
        self._places: dict[tuple[int, int], Request] = {}
        self._initial: dict[int, Request] = {}
        columns = rows.tensor, rows.size, rows.start, rows.end, layout.offsets - low
        for x, size, start, end, offset in np.stack(columns, axis=1)[comes].tolist():
            if x not in kept:
                self._places[x, start] = size, offset
            if end > rows.steps:
                self._initial[x] = size, offset
        self._sizes = [storage.bytes for storage in program.storages]

    def copy(self, step: int, x: int) -> Request:
        """Return the planned size and offset of the copy of tensor `x` that `step` makes."""
        return self._places.get((x, step), NOWHERE)

    def initial(self, x: int) -> Request:
        """Return the planned size and offset of the copy of `x` with which an iteration starts.

        x: a storage that the schedule moves.
        """
        return self._initial.get(x, NOWHERE)

    def computation(self, step: int, writes: Sequence[int], there: set[int]) -> list[Request]:
        """Return the planned sizes and offsets of an operation's results, in order, then of its workspace.

        there: those of its results that are resident already. They are made once more and dropped, and lie in
            the range that is planned for the workspace.
        """
        room, offset = self._places.get((WORKSPACE, step), NOWHERE)
        found: list[Request] = []
        for x in writes:
            size = self._sizes[x]
            if not size:
                continue
            if x in there:
                found.append((min(size, room), offset))
                room, offset = max(0, room - size), offset + size
            else:
                found.append(self.copy(step, x))
        return [*found, (room, offset)] if room else found
