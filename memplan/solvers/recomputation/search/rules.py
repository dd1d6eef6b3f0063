"""Rules for runs in a sequence: where a run may stand, and which run may go."""

from __future__ import annotations

from ....graphs.compiled import inner
from .events import READ, Sequence, find_event
from .instance import Instance


@inner
def may_repeat(instance: Instance, sequence: Sequence, operation: int, slot: int) -> bool:
    return instance.operations[operation].recomputable and on_its_side(instance, sequence, operation, slot)


@inner
def on_its_side(instance: Instance, sequence: Sequence, operation: int, slot: int) -> bool:
    """Tell whether no change in place of what an operation touches is between `slot` and its own position."""
    for k in range(instance.operations[operation].before_start, instance.operations[operation].before_end):
        if first_slot(instance, sequence, instance.members[k]) < slot:
            return False
    for k in range(instance.operations[operation].after_start, instance.operations[operation].after_end):
        if last_slot(instance, sequence, instance.members[k]) > slot:
            return False
    return True


@inner
def first_slot(instance: Instance, sequence: Sequence, operation: int) -> int:
    item = instance.tensors + operation
    if sequence.items[item].count == 0:
        return len(sequence.variant)
    return sequence.events[sequence.items[item].start].slot


@inner
def last_slot(instance: Instance, sequence: Sequence, operation: int) -> int:
    item = instance.tensors + operation
    if sequence.items[item].count == 0:
        return -1
    return sequence.events[sequence.items[item].start + sequence.items[item].count - 1].slot


@inner
def keeps_random_order(instance: Instance, sequence: Sequence, operation: int, first: int) -> bool:
    """Tell whether the operation's first run may be at `first`."""
    earlier, later = instance.operations[operation].earlier, instance.operations[operation].later
    if earlier >= 0 and first_slot(instance, sequence, earlier) > first:
        return False
    return not (later >= 0 and first_slot(instance, sequence, later) < first)


@inner
def may_take(instance: Instance, sequence: Sequence, slot: int) -> bool:
    """Tell whether a run may be taken out.

    It must be a repeat, what it makes must exist without it, and random operations must keep their order.
    """
    variant = sequence.variant[slot]
    operation = instance.variants[variant].operation
    item = instance.tensors + operation
    if sequence.items[item].count < 2:
        return False
    start = sequence.items[item].start
    is_first = sequence.events[start].slot == slot
    for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
        x = instance.members[k]
        place = sequence.items[x].start
        if sequence.events[place].slot == slot:
            is_last = sequence.items[x].count == 1
            # This is the tensor's first event: a read next would find nothing.
            if not is_last and sequence.events[place + 1].kind == READ:
                return False
        # Another run takes its place as the contribution: no read may come between the two.
        if is_first and instance.items[x].summed:
            following = find_event(sequence, x, sequence.events[start + 1].slot)
            for place in range(find_event(sequence, x, slot), following):
                if sequence.events[place].kind == READ:
                    return False
    if is_first:
        # The next run becomes the first, and first runs of random operations keep their order.
        return keeps_random_order(instance, sequence, operation, sequence.events[start + 1].slot)
    return True
