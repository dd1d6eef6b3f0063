"""A solver's decisions: the sequence of runs, which tensors are offloaded in between, and when copies move.

    runs, offloads ──lifetimes.py──▶ uses of each tensor ──copies_over_time.py──▶ copies in each memory
                                                                                        │
              schedule ◀──assembly.py── deletes, copies down; fetches ◀──tensor_transfers.py

A tensor that changes (an update) makes its other copies stale, so one copy down serves all offload intervals
of a version; a copy below is deleted after its last use. What a run in host memory needs is brought there,
and what it changes is fetched before its next use on the device. Linear in the runs but for one sort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...graphs.machine import Memory
from ..schedule.sequence import Run
from .copies_over_time import Copies, Event, Requests, derive_copies
from .lifetimes import Lifetime, count_moments, position_of, slot_moment

TensorUse = tuple[int, int]
"""A tensor and the position in the runs of one of its uses; position -1: of a tensor that no run uses."""


@dataclass(frozen=True)
class Residency:
    """A solver's decisions. Those about a use that does not exist have no effect.

    runs: without useless repeats (sequence.prune).
    offloaded: after which use a tensor leaves its memory, and where it then is: a memory below. After a use
    on the device the device copy leaves; after a use on the host (an optimizer state) the host copy. It is
    back for its next use, if any. Only for uses at which the tensor is complete.
    offload_slots: before which run the copy down for that runs: anywhere between the change that begins the
    version and the next use; by default right after the use.
    prefetch_slots: before which run the copy for a use is fetched; by default, before the run itself. A slot
    after that run is in the iteration before. For a use on the host: when it is read from the disk.
    read_slots: likewise when the copy that is fetched for a use on the device is read from the disk before;
    by default in the slot in which it is fetched.
    """

    runs: Sequence[Run]
    offloaded: Mapping[TensorUse, int] = field(default_factory=dict[TensorUse, int])
    offload_slots: Mapping[TensorUse, int] = field(default_factory=dict[TensorUse, int])
    prefetch_slots: Mapping[TensorUse, int] = field(default_factory=dict[TensorUse, int])
    read_slots: Mapping[TensorUse, int] = field(default_factory=dict[TensorUse, int])

    def without(self, stays: frozenset[int]) -> Residency:
        """Return the same decisions but for these tensors, none of which is offloaded."""
        if not stays:
            return self
        return replace(self, offloaded={use: to for use, to in self.offloaded.items() if use[0] not in stays})


def derive_all_copies(residency: Residency, lifetime: Lifetime, memories: int) -> list[Copies]:
    """Derive the copies of one lifetime in each memory of the row."""
    moments = count_moments(len(residency.runs))
    period = moments if lifetime.persistent else None
    requests = _requests(residency, lifetime, Memory.HOST)
    events, survives = _events(lifetime), lifetime.survives
    copies = [derive_copies(events, requests, period=period, survives=survives, stays_below=lifetime.spread)]
    for memory in range(Memory.HOST, memories):
        requests = _requests(residency, lifetime, memory + 1) if memory < memories - 1 else _NO_REQUESTS
        copies.append(_derive_below(copies[-1], requests, period, survives=lifetime.survives))
    return copies


def slot_before_use(slot: int, use: int, moments: int) -> int:
    """Return the moment of a slot that serves a use: a slot after the use is in the iteration before."""
    return slot_moment(slot) - moments * (slot > position_of(use))


def _events(lifetime: Lifetime) -> list[Event]:
    events = [Event(use.moment, use.memory == Memory.DEVICE, use.changes) for use in lifetime.uses]
    if lifetime.persistent:
        return events
    if not events or not events[0].changes:
        return [Event(0, True, changes=True, anew=True), *events]
    return [events[0]._replace(anew=True), *events[1:]]


def _derive_below(above: Copies, requests: Requests, period: int | None, *, survives: bool) -> Copies:
    if not above.below and not above.always_below:
        return Copies()
    left = survives and not (above.upper and above.upper[-1].end is None)
    return derive_copies(above.below, requests, period=period, survives=left)


_NO_REQUESTS = Requests(lambda _start, _end: False, lambda _moment: None, lambda _moment: None)


def _requests(residency: Residency, lifetime: Lifetime, to: int) -> Requests:
    """Return the decisions that concern copies in the memory above `to`.

    The accesses above the disk are uses on the host, at odd moments, and transfers from and to the device, at
    even ones. Decisions about a transfer are stored with the device's use before it. Above deeper memories
    there are transfers alone, and the uses up to which copies are held for them.
    """
    moments, tensor = count_moments(len(residency.runs)), lifetime.tensor
    device = [use.moment for use in lifetime.device_uses]
    host = {use.moment for use in lifetime.uses if use.memory == Memory.HOST}
    uses = [use.moment for use in lifetime.uses]

    def is_transfer(moment: int) -> bool:
        return moment % moments % 2 == 0

    def last_device_use(moment: int) -> TensorUse:
        """Return the last use on the device before a moment."""
        use = max((use for use in device if use < moment % moments), default=device[-1])
        return tensor, position_of(use)

    def use_of(moment: int) -> TensorUse:
        inside = moment % moments
        return last_device_use(moment) if is_transfer(moment) else (tensor, position_of(inside))

    def offloads(start: int, end: int | None) -> bool:
        if not lifetime.uses:
            asked = residency.offloaded.get((tensor, -1))
        elif end is not None and is_transfer(end):
            asked = residency.offloaded.get(use_of(start) if start % moments in host else use_of(end))
            asked = residency.offloaded.get(use_of(end)) if asked is None else asked
        elif is_transfer(start):
            asked = None
        elif end is None or start % moments in host:
            asked = residency.offloaded.get(use_of(start))
        else:
            asked = residency.offloaded.get(last_device_use(end))
        return asked is not None and asked >= to

    def offloads_deeper(start: int, end: int | None) -> bool:
        if not lifetime.uses:
            return residency.offloaded.get((tensor, -1), Memory.DEVICE) >= to
        # A copy is held for a copy up that is under way; and the copy down comes a moment after `start`.
        if end is not None and (end - start <= 1 or not is_transfer(end)):
            return False
        until = (start if end is None else end) % moments
        moment = max((use for use in uses if use < until), default=uses[-1])
        asked = residency.offloaded.get((tensor, position_of(moment)))
        if asked is None and device:  # after a use on the host that says nothing, as above the disk
            asked = residency.offloaded.get(last_device_use(until))
        return asked is not None and asked >= to

    def copy_down(moment: int) -> int | None:
        slot = residency.offload_slots.get(use_of(moment)) if to == Memory.HOST else None
        return None if slot is None else slot_moment(slot)

    def fetch(moment: int) -> int | None:
        if is_transfer(moment):
            return moment  # read from below in the slot of the fetch that needs it
        inside = moment % moments
        # Fetches for uses on the device are placed by assembly.py.
        slot = residency.prefetch_slots.get(use_of(moment)) if to == Memory.DISK else None
        return None if slot is None else moment - inside + slot_before_use(slot, inside, moments)

    return Requests(offloads if to <= Memory.DISK else offloads_deeper, copy_down, fetch)
