"""Recovery of a residency from a schedule: its runs, which tensors are offloaded when, and slots of copies.

The reverse of build_schedule, but for the order of steps before the same run, for reads from the disk that a
run in host memory needs, and for copies below the disk: these may move once more than they did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graphs.graph import Graph
from ...graphs.machine import Memory
from ..schedule.schedule import Schedule, Verb
from ..schedule.sequence import runs_of
from .lifetimes import Lifetime, count_moments, find_lifetimes, position_of, slot_moment
from .residency import Residency, TensorUse


def recover_residency(graph: Graph, schedule: Schedule) -> Residency:
    """Recover the decisions of a valid schedule.

    A tensor is offloaded after a use if its copy there is deleted before its next use; to the deepest memory
    that it was copied to or read from meanwhile. All fetches get their slots, and all reads from the disk for
    one; reads from deeper memories are in the slots of those that they feed.
    """
    runs = runs_of(schedule)
    gone: dict[tuple[int, int], list[int]] = {}
    written: dict[tuple[int, int], list[int]] = {}
    stored: dict[int, list[int]] = {}
    fetched: dict[tuple[int, int], list[int]] = {}
    position, moments = -1, count_moments(len(runs))
    for verb, target, where in schedule.rows():
        if verb == Verb.COMPUTE:
            position += 1
        elif verb == Verb.DELETE:
            gone.setdefault((target, where), []).append(position)
        elif verb == Verb.OFFLOAD and where >= Memory.DISK:
            written.setdefault((target, where), []).append(position)
        elif verb == Verb.OFFLOAD:
            stored.setdefault(target, []).append(slot_moment(position + 1))
        else:
            # A copy listed after a run is in the slot before the next one.
            fetched.setdefault((target, where), []).append(slot_moment(position + 1))
    offloaded: dict[TensorUse, int] = {}
    deeper = range(schedule.memories - 1, Memory.HOST, -1)
    offload_slots: dict[TensorUse, int] = {}
    prefetch_slots: dict[TensorUse, int] = {}
    read_slots: dict[TensorUse, int] = {}
    for lifetime in find_lifetimes(graph, runs):
        x = lifetime.tensor
        through = {
            memory: [
                *written.get((x, memory), ()),
                *(position_of(m) - 1 for m in fetched.get((x, memory - 1), ())),
            ]
            for memory in deeper
        }
        at_start = schedule.initial.memories(x)[-1]
        if not lifetime.uses and lifetime.persistent and at_start > Memory.DEVICE:
            offloaded[x, -1] = at_start
        for memory in (Memory.DEVICE, Memory.HOST):
            uses = [position_of(use.moment) for use in lifetime.uses if use.memory == memory]
            # The interval of a persistent tensor goes on to its first use of the next iteration.
            ends = [*uses[1:], uses[0] + len(runs) if lifetime.persistent else len(runs)] if uses else []
            for after, before in zip(uses, ends, strict=True):
                if not _within(gone.get((x, memory), ()), after, before, len(runs)):
                    continue
                # Its last delete: it is dead, not offloaded.
                if before == len(runs) and not (lifetime.persistent or lifetime.survives):
                    continue
                # From the deepest up: the first that it was written to or read from is where it lies.
                for deep in deeper:
                    stays = at_start == deep and lifetime.persistent and not written.get((x, deep))
                    if stays or _within(through[deep], after, before, len(runs)):
                        offloaded[x, after] = deep
                        break
                else:
                    if memory == Memory.DEVICE:
                        offloaded[x, after] = Memory.HOST
        offload_slots.update(_stored(lifetime, stored.get(x, ()), moments))
        up, from_disk = (fetched.get((x, memory), ()) for memory in (Memory.DEVICE, Memory.HOST))
        for place, slot, read_slot in _fetched(lifetime, up, from_disk, moments):
            prefetch_slots[place] = slot
            if read_slot is not None:
                read_slots[place] = read_slot
    return Residency(runs, offloaded, offload_slots, prefetch_slots, read_slots)


def _stored(lifetime: Lifetime, moments: Sequence[int], period: int) -> Iterator[tuple[TensorUse, int]]:
    """Find, per use on the device, the slot of the version's copy down if it is not right after the use."""
    changes = [use.moment for use in lifetime.uses if use.changes]
    for use in lifetime.uses if moments else ():
        begun = [change for change in changes if change <= use.moment]
        # The version in use: of the last change before, maybe of the iteration before; −1: as it was made.
        begin = begun[-1] if begun else changes[-1] - period if changes and lifetime.persistent else -1
        # The first copy after the change is of this version, whichever iteration it is listed in.
        copied = [m for each in moments for m in (each - period, each, each + period) if m > begin]
        slot = position_of(min(copied) % period) if copied else -1
        if use.memory == Memory.DEVICE and copied and slot != position_of(use.moment) + 1:
            yield (lifetime.tensor, position_of(use.moment)), slot


def _fetched(
    lifetime: Lifetime, moments: Sequence[int], reads: Sequence[int], period: int
) -> Iterator[tuple[TensorUse, int, int | None]]:
    """Find the uses on the device for which the tensor is fetched, each with the slot of the fetch and, if it
    is read from the disk before, of the read."""
    uses = [use.moment for use in lifetime.uses if use.memory == Memory.DEVICE]
    # The use before the first one is the last of the iteration before.
    before = uses[-1] - period if uses and lifetime.persistent else lifetime.first_moment - 1
    for use in uses if moments else ():
        copied = [m for each in moments for m in (each - period, each) if before < m < use]
        if copied:
            read = [r for each in reads for r in (each - period, each) if before < r <= max(copied)]
            read_slot = position_of(max(read) % period) if read else None
            yield (lifetime.tensor, position_of(use)), position_of(max(copied) % period), read_slot
        before = use


def _within(positions: Sequence[int], after: int, before: int, runs: int) -> bool:
    """Tell whether something happens after run `after` and before run `before`, maybe of the next
    iteration."""
    return any(after <= p < before or after <= p + runs < before for p in positions)
