"""Moves that take a run out, shift it, or run another execution variant.

Every move leaves a valid sequence or says that it failed; then the caller undoes it.
"""

from __future__ import annotations

import numpy as np

from ....graphs.compiled import inner
from .events import ADD, EMPTY, READ, Sequence, find_event
from .instance import Instance
from .rematerialize import DONE, FAILED
from .rules import first_slot, keeps_random_order, may_take, on_its_side
from .sequence import REACH, between, empty_before, has_room, put, random_run, take


@inner
def remove_repeat(instance: Instance, sequence: Sequence) -> int:
    for _ in range(64):
        slot = random_run(sequence)
        if may_take(instance, sequence, slot):
            take(instance, sequence, slot)
            return DONE
    return FAILED


@inner
def shift(instance: Instance, sequence: Sequence) -> int:
    """Move a run to another slot between what makes its inputs and the first use of its outputs."""
    slot = random_run(sequence)
    variant = sequence.variant[slot]
    operation = instance.variants[variant].operation
    low, high = 0, len(sequence.variant) - 2
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        y = instance.members[k]
        # Back over other reads to what makes the input: the run may not come before it.
        place = find_event(sequence, y, slot) - 1
        start = sequence.items[y].start
        while place > start and sequence.events[place].kind == READ:
            place -= 1
        low = max(low, sequence.events[place].slot)
    for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
        x = instance.members[k]
        place = find_event(sequence, x, slot) + 1
        end = sequence.items[x].start + sequence.items[x].count
        while place < end and sequence.events[place].kind == ADD:
            place += 1
        # The next event that is no contribution: a use, which the run must precede.
        if place < end:
            high = min(high, sequence.events[place].slot)
        before = find_event(sequence, x, slot) - 1
        # Not before the last event of an earlier copy; contributions to a sum may change places.
        if before >= sequence.items[x].start and not instance.items[x].summed:
            low = max(low, sequence.events[before].slot)
    # A slot strictly between the two, other than its own.
    if high - low < 3:
        return FAILED
    choice = np.random.random()
    if choice < 0.25:
        target = high
    elif choice < 0.4 and low:
        target = min(low + 1 + REACH // 2, high)
    elif choice < 0.7:
        target = between(low + 1, high)
    else:
        target = min(high, max(low + 2, slot + between(-40, 41)))
    at = empty_before(sequence, target)
    if at <= low or at == slot:
        return FAILED
    take(instance, sequence, slot)
    if not on_its_side(instance, sequence, operation, at):
        return FAILED
    put(instance, sequence, at, variant)
    first = first_slot(instance, sequence, operation)
    is_random = instance.operations[operation].earlier >= 0 or instance.operations[operation].later >= 0
    if is_random and not keeps_random_order(instance, sequence, operation, first):
        return FAILED
    return DONE


@inner
def run_another_variant(instance: Instance, sequence: Sequence) -> int:
    """Replace a random run by another execution variant of its operation."""
    slot = random_run(sequence)
    variant = sequence.variant[slot]
    operation = instance.variants[variant].operation
    first = instance.operations[operation].default
    other = first
    while other < len(instance.variants) and instance.variants[other].operation == operation:
        other += 1
    if other - first < 2:
        return FAILED
    chosen = between(first, other)
    if chosen == variant or not has_room(instance, sequence, chosen):
        return FAILED
    take(instance, sequence, slot)
    put(instance, sequence, slot, chosen)
    for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
        x = instance.members[k]
        start = sequence.items[x].start
        # A read without anything that makes it: the other variant does not make x.
        lost = sequence.items[x].count > 0 and sequence.events[start].kind == READ
        if lost or (instance.items[x].summed and chosen != variant):
            return FAILED
    return DONE


@inner
def clear_useless(instance: Instance, sequence: Sequence) -> None:
    """Take out the repeats that have become useless, and those that this makes useless."""
    useless = sequence.useless
    while useless[0]:
        slot = useless[int(useless[0])]
        useless[0] -= 1
        if (
            sequence.variant[slot] != EMPTY
            and sequence.useful[slot] == 0
            and may_take(instance, sequence, slot)
        ):
            take(instance, sequence, slot)
