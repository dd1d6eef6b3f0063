"""From what a solver decides - what runs when, what is away in between - to a schedule with its transfers.

    runs, absences ──lives.py──▶ uses of each tensor ──levels.py──▶ copies on device, host, disk
                                                                        │
                                              offloads, prefetches, deletes, `initial` in list order

A tensor that changes (an update) makes its other copies stale, so one offload serves all absences of a
version; a copy below is deleted after its last use. What a run in host memory needs is brought there, and
what it changes is fetched back before its next use on the device. Linear in the runs but for one sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..errors import InvalidScheduleError
from ..schedule.schedule import Initial, Schedule, Step, compute, delete, offload, prefetch
from ..schedule.sequence import Run
from .levels import Event, Level, Wish, level
from .lives import Life, lives, position_of, slot_moment, turn_length

Place = tuple[int, int]
"""A tensor and the position in the runs of one of its uses; position -1: of a tensor that none uses."""


@dataclass(frozen=True)
class Residence:
    """What a solver decides. The runs are without useless repeats (sequence.prune).

    away: after which use a tensor leaves its memory, and where it then lies: HOST or DISK. A use on the
    device: the device copy leaves; a use on the host (an optimizer state): the host copy, to DISK. It is
    back for its next use, if any. Only for uses at which the tensor is complete.
    leave: (tensor, position of the use) -> slot, before which run the copy down is made: anywhere between the
    change that begins the version and the next use; by default right after that use. back: (tensor, position
    of the use) -> slot, before which run the copy is fetched for a use, that run itself by default; a slot
    beyond the position is in the turn before. For a use on the host that is when the copy is read from the
    disk. read: likewise when the copy that is fetched for a use on the device is read from the disk before;
    where it is fetched by default.
    """

    runs: Sequence[Run]
    away: Mapping[Place, Memory] = field(default_factory=dict[Place, Memory])
    leave: Mapping[Place, int] = field(default_factory=dict[Place, int])
    back: Mapping[Place, int] = field(default_factory=dict[Place, int])
    read: Mapping[Place, int] = field(default_factory=dict[Place, int])


class PlacedStep(NamedTuple):
    """A step before run `slot`. order: among those of its rank there, what is fetched by need."""

    slot: int
    rank: int
    order: int
    step: Step


def residence_schedule(graph: Graph, residence: Residence) -> Schedule:
    """The schedule of these decisions, as far as they fit: the simulator judges it.

    Raises InvalidScheduleError where a persistent tensor would have to start in memories that `initial` has
    no word for (on the disk and elsewhere).
    """
    runs = residence.runs
    placed: list[PlacedStep] = []
    places: dict[int, set[Memory]] = {}
    for life in lives(graph, runs):
        levels = life_levels(residence, life)
        placed.extend(life_steps(life.tensor, levels, turn_length(len(runs))))
        if life.cyclic:
            places[life.tensor] = memories_at_start(levels, turn_length(len(runs)))
    placed.sort(key=lambda item: item[:3])
    return Schedule.of(_merged(runs, placed), _initial(graph, places))


def life_levels(residence: Residence, life: Life) -> tuple[Level, Level, Level]:
    """One life's copies on the device, on the host and on the disk."""
    runs = len(residence.runs)
    cycle = turn_length(runs) if life.cyclic else None
    device = level(_events(life), _wish(residence, life, Memory.HOST), cycle=cycle, stays=life.stays)
    host = _below(device, _wish(residence, life, Memory.DISK), cycle, life.stays)
    disk = _below(host, _NO_WISH, cycle, life.stays)
    return device, host, disk


def _events(life: Life) -> list[Event]:
    events = [Event(use.moment, use.memory == Memory.DEVICE, use.changes) for use in life.uses]
    if life.cyclic:
        return events
    if not events or not events[0].changes:
        return [Event(0, True, changes=True, anew=True), *events]
    return [events[0]._replace(anew=True), *events[1:]]


def _below(above: Level, wish: Wish, cycle: int | None, stays: bool) -> Level:
    if not above.below and not above.always_below:
        return Level()
    left = stays and not (above.pieces and above.pieces[-1].end is None)
    return level(above.below, wish, cycle=cycle, stays=left)


_NO_WISH = Wish(lambda _start, _end: False, lambda _moment: None, lambda _moment: None)


def _wish(residence: Residence, life: Life, to: Memory) -> Wish:
    """What the solver wants of the copies above `to`."""
    turn, tensor = turn_length(len(residence.runs)), life.tensor

    device = [use.moment for use in life.uses if use.memory == Memory.DEVICE]
    host = {use.moment for use in life.uses if use.memory == Memory.HOST}

    def place(moment: int) -> Place:
        """Of the use above; of a transfer's: of the last use on the device before it."""
        inside = moment % turn
        return last_before(moment) if inside % 2 == 0 else (tensor, position_of(inside))

    def last_before(moment: int) -> Place:
        """The last use on the device before a moment."""
        use = max((use for use in device if use < moment % turn), default=device[-1])
        return tensor, position_of(use)

    def away(start: int, end: int | None) -> bool:
        if not life.uses:
            asked = residence.away.get((tensor, -1))
        elif end is not None and end % turn % 2 == 0:
            asked = residence.away.get(place(start) if start % turn in host else place(end))
            asked = residence.away.get(place(end)) if asked is None else asked
        elif start % turn % 2 == 0:
            asked = None
        elif end is None or start % turn in host:
            asked = residence.away.get(place(start))
        else:
            asked = residence.away.get(last_before(end))
        return asked is not None and asked >= to

    def leave(moment: int) -> int | None:
        slot = residence.leave.get(place(moment)) if to == Memory.HOST else None
        return None if slot is None else slot_moment(slot)

    def back(moment: int) -> int | None:
        inside = moment % turn
        if inside % 2 == 0:  # the copy up for the use behind it
            use = min((use for use in device if use > inside), default=device[0])
            slot = residence.read.get((tensor, position_of(use)), position_of(inside))
        else:
            slot = residence.back.get(place(moment))
        if slot is None:
            return None
        return moment - inside + slot_moment(slot) - turn * (slot > position_of(inside))

    return Wish(away, leave, back)


_WAYS = ({Memory.DEVICE}, {Memory.HOST}, {Memory.DISK}, {Memory.DEVICE, Memory.HOST})
"""Where a persistent tensor may start."""

_DELETE_USED, _OFFLOAD, _WRITE, _DELETE, READ, _DELETE_READ, PREFETCH = range(7)
"""The order of the steps before one run: what leaves, then what comes."""


def life_steps(x: int, levels: tuple[Level, Level, Level], turn: int) -> Iterator[PlacedStep]:
    """All transfers and deletes of one life."""
    device, host, disk = levels
    for rank, copies, step in (
        (_OFFLOAD, device, offload(x)),
        (_WRITE, host, offload(x, Memory.DISK)),
    ):
        for moment in copies.stored:
            yield PlacedStep(moment % turn // 2, rank, moment % turn, step)
    for rank, copies, step in ((READ, host, prefetch(x, Memory.HOST)), (PREFETCH, device, prefetch(x))):
        for piece in copies.pieces:
            if piece.use is not None:
                start = piece.start % turn
                yield PlacedStep(start // 2, rank, start + piece.use - piece.start, step)
    for memory, copies, after_run, after_transfer in (
        (Memory.DEVICE, device, _DELETE, _DELETE),
        (Memory.HOST, host, _DELETE_USED, _DELETE),
        (Memory.DISK, disk, _DELETE_USED, _DELETE_READ),
    ):
        stored = {moment % turn for moment in copies.stored}
        for piece in copies.pieces:
            if piece.end is not None:
                moment = piece.end % turn
                moved = moment % 2 or moment in stored
                yield PlacedStep(
                    moment // 2, after_transfer if moved else after_run, moment, delete(x, memory)
                )


def _merged(runs: Sequence[Run], placed: Sequence[PlacedStep]) -> Iterator[Step]:
    rest = iter(placed)
    item = next(rest, None)
    for slot in range(len(runs) + 1):
        while item is not None and item.slot == slot:
            yield item.step
            item = next(rest, None)
        if slot < len(runs):
            yield compute(*runs[slot])


def memories_at_start(levels: Sequence[Level], turn: int) -> set[Memory]:
    """The memories with a copy of a persistent tensor between the end of a turn and the next."""
    return {
        memory
        for memory, copies in zip(Memory, levels, strict=True)
        if any(piece.end is None or piece.start // turn < piece.end // turn for piece in copies.pieces)
    }


def _initial(graph: Graph, places: Mapping[int, set[Memory]]) -> Initial:
    device, host, disk = Memory
    at: dict[frozenset[Memory], list[int]] = {frozenset(way): [] for way in _WAYS}
    for x, memories in places.items():
        if memories not in _WAYS:
            names = " and ".join(memory.name.lower() for memory in sorted(memories))
            fault = f"{graph.tensors.name[x]} would start on {names}, which `initial` can't say"
            raise InvalidScheduleError("initial", fault, step=None, tensor=graph.tensors.name[x])
        at[frozenset(memories)].append(x)
    return Initial(*(frozenset(at[frozenset(way)]) for way in ({host}, {disk}, {device, host})))
