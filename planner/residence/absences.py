"""What a schedule's transfers amount to: its runs, which tensors are away when, and where copies stand.

The reverse of residence.py, but for the order of what stands before the same run, and for reads from disk
that a run in host memory needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import Schedule, Verb
from ..schedule.sequence import runs_of
from .lives import Life, lives, position_of, slot_moment, turn_length
from .residence import Place, Residence


def residence_of(graph: Graph, schedule: Schedule) -> Residence:
    """The decisions behind a schedule that holds. A tensor is away after a use if its copy there is deleted
    before its next use; on the disk if it was copied there or read from there meanwhile. `back` tells of
    every fetch, `read` of every read from the disk for one."""
    runs = runs_of(schedule)
    gone: dict[tuple[int, int], list[int]] = {}
    written: dict[int, list[int]] = {}
    stored: dict[int, list[int]] = {}
    fetched: dict[tuple[int, int], list[int]] = {}
    position = -1
    for verb, target, where in schedule.rows():
        if verb == Verb.COMPUTE:
            position += 1
        elif verb == Verb.DELETE:
            gone.setdefault((target, where), []).append(position)
        elif verb == Verb.OFFLOAD and where == Memory.DISK:
            written.setdefault(target, []).append(position)
        elif verb == Verb.OFFLOAD:
            stored.setdefault(target, []).append(slot_moment(position + 1))
        else:
            fetched.setdefault((target, where), []).append(slot_moment(position + 1))
    away: dict[Place, Memory] = {}
    leave: dict[Place, int] = {}
    back: dict[Place, int] = {}
    read: dict[Place, int] = {}
    for life in lives(graph, runs):
        x = life.tensor
        through_disk = [*written.get(x, ()), *(position_of(m) - 1 for m in fetched.get((x, Memory.HOST), ()))]
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
                if below or _within(through_disk, after, before, len(runs)):
                    away[x, after] = Memory.DISK
                elif memory == Memory.DEVICE:
                    away[x, after] = Memory.HOST
        leave.update(_stored(life, stored.get(x, ()), turn_length(len(runs))))
        up, from_disk = (fetched.get((x, memory), ()) for memory in (Memory.DEVICE, Memory.HOST))
        for place, slot, read_slot in _fetched(life, up, from_disk, turn_length(len(runs))):
            back[place] = slot
            if read_slot is not None:
                read[place] = read_slot
    return Residence(runs, away, leave, back, read)


def _stored(life: Life, moments: Sequence[int], turn: int) -> Iterator[tuple[Place, int]]:
    """Per use on the device where the copy down of that version stands, if not right behind it."""
    changes = [use.moment for use in life.uses if use.changes]
    for use in life.uses if moments else ():
        begun = [change for change in changes if change <= use.moment]
        begin = begun[-1] if begun else changes[-1] - turn if changes and life.cyclic else -1
        copied = [m for each in moments for m in (each - turn, each, each + turn) if m > begin]
        slot = position_of(min(copied) % turn) if copied else -1
        if use.memory == Memory.DEVICE and copied and slot != position_of(use.moment) + 1:
            yield (life.tensor, position_of(use.moment)), slot


def _fetched(
    life: Life, moments: Sequence[int], reads: Sequence[int], turn: int
) -> Iterator[tuple[Place, int, int | None]]:
    """Per use on the device for which the tensor is fetched, where that stands, and the read from the disk
    before it, if any."""
    uses = [use.moment for use in life.uses if use.memory == Memory.DEVICE]
    before = uses[-1] - turn if uses and life.cyclic else life.born - 1
    for use in uses if moments else ():
        copied = [m for each in moments for m in (each - turn, each) if before < m < use]
        if copied:
            read = [r for each in reads for r in (each - turn, each) if before < r <= max(copied)]
            read_slot = position_of(max(read) % turn) if read else None
            yield (life.tensor, position_of(use)), position_of(max(copied) % turn), read_slot
        before = use


def _within(positions: Sequence[int], after: int, before: int, runs: int) -> bool:
    """Something happens behind run `after` and before run `before`, which may be in the next turn."""
    return any(after <= p < before or after <= p + runs < before for p in positions)
