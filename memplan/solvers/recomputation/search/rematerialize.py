"""Rematerialize a tensor: recompute it right before a use, so that it need not be kept until then.

What that needs is kept longer, or recomputed too; nearly always the latter if keeping it takes too much.
"""

from __future__ import annotations

import numpy as np

from ....graphs.compiled import inner
from .events import ADD, EMPTY, MAKE, READ, Sequence, find_event
from .instance import Instance
from .rules import may_repeat
from .sequence import REACH, between, has_room, put, random_run, take
from .tree import largest_in, peak_slot

DONE, FAILED, CROWDED = 0, 1, 2
"""Outcomes of a move. CROWDED: no empty slot where one is needed; `spread` helps."""

_DEPTH = 24
"""Most runs that the recomputation of one tensor may cost."""

_TIGHT, _ROOMY = 0.9, 0.1
"""Probabilities to recompute an input instead of keeping it longer: if that takes too much; if it fits."""

_SAMPLES = 24
"""Number of tensors to look at to find one kept across the peak."""


@inner
def rematerialize(instance: Instance, sequence: Sequence, item: int, slot: int, limit: int) -> int:
    """Make `item` right before `slot`, and what is missing for that."""
    items, slots = np.empty(_DEPTH, np.int64), np.empty(_DEPTH, np.int64)
    items[0], slots[0] = item, slot
    waiting, made = 1, 0
    while waiting:
        waiting -= 1
        x, until = items[waiting], slots[waiting]
        variant = instance.items[x].producer
        if variant < 0:
            return FAILED
        operation = instance.variants[variant].operation
        if not has_room(instance, sequence, variant):
            return FAILED
        at = _room_before(instance, sequence, until)
        if at < 0:
            return CROWDED if made < 8 else FAILED
        if not may_repeat(instance, sequence, operation, at):
            return FAILED
        place = find_event(sequence, x, at)
        # It must have been made before, and be read next by the run for which it is recomputed.
        if place == sequence.items[x].start or sequence.events[place].slot > until:
            return FAILED
        put(instance, sequence, at, variant)
        made += 1
        for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
            y = instance.members[k]
            place = find_event(sequence, y, at)
            if place == sequence.items[y].start:
                return FAILED
            end = sequence.items[y].start + sequence.items[y].count
            # A sum cannot be read before its last contribution.
            if instance.items[y].summed:
                for later in range(place + 1, end):
                    if sequence.events[later].kind == ADD:
                        return FAILED
                continue
            # Kept longer for this read only if no later one keeps it anyway.
            is_last = place + 1 == end or sequence.events[place + 1].kind == MAKE
            since = sequence.events[place - 1].slot
            if not is_last or since + 1 >= at:
                continue
            y_variant = instance.items[y].producer
            if y_variant < 0 or not instance.operations[instance.variants[y_variant].operation].recomputable:
                continue
            # Is it tight anywhere between its last use and here, where it would be kept longer?
            tight = largest_in(sequence.tree, since + 1, at) > limit
            if np.random.random() < (_TIGHT if tight else _ROOMY):
                if waiting + made + 1 >= _DEPTH:
                    return FAILED
                items[waiting], slots[waiting] = y, at
                waiting += 1
    return DONE


@inner
def rematerialize_anywhere(instance: Instance, sequence: Sequence, limit: int) -> int:
    """Recompute a random tensor before a use of it."""
    slot = random_run(sequence)
    operation = instance.variants[sequence.variant[slot]].operation
    first, last = instance.operations[operation].reads_start, instance.operations[operation].reads_end
    if first == last:
        return FAILED
    x = instance.members[between(first, last)]
    return rematerialize(instance, sequence, x, slot, limit)


@inner
def rematerialize_across_peak(instance: Instance, sequence: Sequence, limit: int) -> int:
    """Recompute one of some tensors kept across the peak: the one that is cheapest per byte."""
    slot = peak_slot(sequence.tree)
    chosen, use, least = -1, -1, np.inf
    for _ in range(_SAMPLES):
        x = between(0, instance.tensors)
        variant = instance.items[x].producer
        if (
            variant < 0
            or instance.items[x].size == 0
            or not instance.operations[instance.variants[variant].operation].recomputable
        ):
            continue
        place = find_event(sequence, x, slot)
        end = sequence.items[x].start + sequence.items[x].count
        if place == sequence.items[x].start or place == end:
            continue
        at = sequence.events[place].slot
        # Read at the peak itself, or not kept across it, or a result that must last.
        if at == slot or sequence.events[place].kind != READ or at >= len(sequence.variant) - 2:
            continue
        # Times a random factor: the same tensor is not always the cheapest.
        price = instance.variants[variant].seconds / instance.items[x].size * (0.3 + np.random.random())
        if price < least:
            chosen, use, least = x, at, price
    if chosen < 0:
        return FAILED
    return rematerialize(instance, sequence, chosen, use, limit)


@inner
def _room_before(instance: Instance, sequence: Sequence, slot: int) -> int:
    """Return an empty slot right before `slot`; if there is none, runs are shifted to the left."""
    if sequence.variant[slot - 1] == EMPTY:
        return slot - 1
    at = slot - 2
    while sequence.variant[at] != EMPTY:
        at -= 1
    # Shifting far costs too much: `spread` makes room.
    if at <= 1 or slot - at > REACH:
        return -1
    for moved in range(at + 1, slot):
        variant = sequence.variant[moved]
        take(instance, sequence, moved)
        put(instance, sequence, moved - 1, variant)
    return slot - 1
