"""What a schedule's transfers amount to: its runs, and which tensors are away between two uses.

The reverse of residence.py, but for where in the list each transfer stands.
"""

from __future__ import annotations

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import Schedule, Verb
from ..schedule.sequence import runs_of
from .lives import lives, position_of
from .residence import Place, Residence


def residence_of(graph: Graph, schedule: Schedule) -> Residence:
    """The decisions behind a schedule that holds. A tensor is away after a use if its copy there is deleted
    before its next use; on the disk if it was copied there meanwhile."""
    runs = runs_of(schedule)
    gone: dict[tuple[int, int], list[int]] = {}
    written: dict[int, list[int]] = {}
    position = -1
    for verb, target, where in schedule.rows():
        if verb == Verb.COMPUTE:
            position += 1
        elif verb == Verb.DELETE:
            gone.setdefault((target, where), []).append(position)
        elif verb == Verb.OFFLOAD and where == Memory.DISK:
            written.setdefault(target, []).append(position)
    away: dict[Place, Memory] = {}
    for life in lives(graph, runs):
        x = life.tensor
        if not life.uses and x in schedule.initial.host | schedule.initial.disk:
            away[x, -1] = Memory.DISK if x in schedule.initial.disk else Memory.HOST
        for memory in (Memory.DEVICE, Memory.HOST):
            uses = [position_of(use.moment) for use in life.uses if use.memory == memory]
            ends = [*uses[1:], uses[0] + len(runs) if life.cyclic else len(runs)] if uses else []
            for after, before in zip(uses, ends, strict=True):
                if not _within(gone.get((x, memory), ()), after, before, len(runs)):
                    continue
                if before == len(runs) and not (life.cyclic or life.stays):
                    continue
                below = x in schedule.initial.disk and life.cyclic and not written.get(x)
                if below or _within(written.get(x, ()), after, before, len(runs)):
                    away[x, after] = Memory.DISK
                elif memory == Memory.DEVICE:
                    away[x, after] = Memory.HOST
    return Residence(runs, away)


def _within(positions: list[int] | tuple[int, ...], after: int, before: int, runs: int) -> bool:
    """Something happens behind run `after` and before run `before`, which may be in the next turn."""
    return any(after <= p < before or after <= p + runs < before for p in positions)
