"""A sequence of runs, changed run by run, with its time, its peak and its useless runs always up to date.

Runs are in slots with empty ones between. Putting one in, or taking one out, changes the events of what it
reads and makes (events.py), and is noted in a journal, so that a move can be undone. Slots are drawn at
random here too.
"""

from __future__ import annotations

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import compiled, inner
from .events import ADD, EMPTY, MAKE, READ, Sequence, insert_event, note_useless, remove_event
from .instance import Instance
from .tree import add, memory_tree

_ITEM = np.dtype([("start", np.int64), ("end", np.int64), ("count", np.int64)])
_EVENT = np.dtype([("slot", np.int64), ("kind", np.int64)])

REACH = 6
"""Number of slots to look through for an empty one."""


def sequence(instance: Instance, variants: Ints, slots: int = 0) -> Sequence:
    """Build a sequence of the variants in this order, spread over at least `slots` slots and four per run."""
    size = 1 << max(4, int(max(slots, 4 * (len(variants) + 2)) - 1).bit_length())
    count = np.zeros(len(instance.items), np.int64)
    _count_events(instance, variants, count)
    # Space for three times the events of now; `has_room` refuses a move that needs more.
    ends = np.cumsum(3 * count + 32)
    items = np.zeros(len(ends), _ITEM)
    items["start"][1:], items["end"] = ends[:-1], ends
    made = Sequence(
        variant=np.full(size, EMPTY, np.int64),
        useful=np.zeros(size, np.int64),
        tree=memory_tree(size),
        items=items,
        events=np.zeros(ends[-1], _EVENT),
        seconds=np.zeros(2),
        useless=np.zeros(size + 1, np.int64),
        journal=np.zeros((4 * size, 3), np.int64),
    )
    _fill(instance, made, variants)
    return made


@compiled
def _count_events(instance: Instance, variants: Ints, count: Ints) -> None:
    for x in instance.results:
        count[x] += 1
    for variant in variants:
        operation = instance.variants[variant].operation
        count[instance.tensors + operation] += 1
        for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
            count[instance.members[k]] += 1
        for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
            count[instance.members[k]] += 1


@compiled
def _fill(instance: Instance, sequence: Sequence, variants: Ints) -> None:
    slots = len(sequence.variant)
    add(sequence.tree, 1, slots - 2, instance.always)
    for x in instance.results:
        # A result is read at the end, so that it is kept.
        insert_event(instance, sequence, x, slots - 2, READ)
    for k in range(len(variants)):
        put(instance, sequence, (k + 1) * (slots - 3) // (len(variants) + 1), variants[k])
    sequence.journal[0, 0] = 0


@inner
def period(sequence: Sequence) -> float:
    """Return the seconds of an iteration: the larger of the device's and the launching thread's.

    Nothing else keeps either waiting.
    """
    return max(sequence.seconds[0], sequence.seconds[1])


@inner
def variants_of_sequence(sequence: Sequence) -> Ints:
    return sequence.variant[sequence.variant >= 0]


@inner
def has_room(instance: Instance, sequence: Sequence, variant: int) -> bool:
    """Tell whether the items of this variant can take one more event."""
    operation = instance.variants[variant].operation
    if _is_full(sequence, instance.tensors + operation):
        return False
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        if _is_full(sequence, instance.members[k]):
            return False
    for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
        if _is_full(sequence, instance.members[k]):
            return False
    return sequence.journal[0, 0] + 2 < len(sequence.journal)


@inner
def _is_full(sequence: Sequence, item: int) -> bool:
    return sequence.items[item].start + sequence.items[item].count == sequence.items[item].end


@inner
def put(instance: Instance, sequence: Sequence, slot: int, variant: int) -> None:
    """Run `variant` in the empty `slot`."""
    operation = instance.variants[variant].operation
    sequence.variant[slot] = variant
    sequence.useful[slot] = 0
    sequence.seconds[0] += instance.variants[variant].seconds
    sequence.seconds[1] += instance.variants[variant].launch
    add(sequence.tree, slot, slot, instance.variants[variant].workspace)
    insert_event(instance, sequence, instance.tensors + operation, slot, MAKE)
    for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
        x = instance.members[k]
        insert_event(instance, sequence, x, slot, ADD if instance.items[x].summed else MAKE)
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        insert_event(instance, sequence, instance.members[k], slot, READ)
    # Nothing that it makes is read: a repeat like that can be taken out at once (`clear_useless`).
    if sequence.useful[slot] == 0:
        note_useless(sequence, slot)
    _note(sequence, slot, variant, 1)


@inner
def take(instance: Instance, sequence: Sequence, slot: int) -> None:
    """Take the run out of the slot."""
    variant = sequence.variant[slot]
    operation = instance.variants[variant].operation
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        remove_event(instance, sequence, instance.members[k], slot)
    for k in range(instance.variants[variant].writes_start, instance.variants[variant].writes_end):
        remove_event(instance, sequence, instance.members[k], slot)
    remove_event(instance, sequence, instance.tensors + operation, slot)
    add(sequence.tree, slot, slot, -instance.variants[variant].workspace)
    sequence.seconds[0] -= instance.variants[variant].seconds
    sequence.seconds[1] -= instance.variants[variant].launch
    sequence.variant[slot] = EMPTY
    sequence.useful[slot] = 0
    _note(sequence, slot, variant, 0)


@inner
def _note(sequence: Sequence, slot: int, variant: int, was_put: int) -> None:
    journal = sequence.journal
    journal[0, 0] += 1
    row = journal[0, 0]
    journal[row, 0], journal[row, 1], journal[row, 2] = slot, variant, was_put


@inner
def undo(instance: Instance, sequence: Sequence) -> None:
    """Take back all that the journal has."""
    journal = sequence.journal
    for row in range(journal[0, 0], 0, -1):
        # `take` and `put` note themselves in the row after this one, which is undone already.
        journal[0, 0] = row
        if journal[row, 2]:
            take(instance, sequence, journal[row, 0])
        else:
            put(instance, sequence, journal[row, 0], journal[row, 1])
    journal[0, 0] = 0
    sequence.useless[0] = 0


@inner
def spread(instance: Instance, sequence: Sequence) -> None:
    """Rewrite the sequence with its runs at equal distances."""
    variants = variants_of_sequence(sequence)
    sequence.variant[:] = EMPTY
    sequence.useful[:] = 0
    sequence.tree.largest[:] = 0
    sequence.tree.added[:] = 0
    for item in range(len(sequence.items)):
        sequence.items[item].count = 0
    sequence.seconds[:] = 0.0
    _fill(instance, sequence, variants)
    sequence.useless[0] = 0


@inner
def random_run(sequence: Sequence) -> int:
    """Return a random slot with a run."""
    slots = len(sequence.variant)
    while True:
        slot = between(1, slots - 2)
        if sequence.variant[slot] != EMPTY:
            return slot


@inner
def empty_before(sequence: Sequence, slot: int) -> int:
    for at in range(slot - 1, max(0, slot - REACH), -1):
        if sequence.variant[at] == EMPTY:
            return at
    return -1


@inner
def between(first: int, end: int) -> int:
    """Return a random number from first to end − 1."""
    return np.random.randint(first, end)
