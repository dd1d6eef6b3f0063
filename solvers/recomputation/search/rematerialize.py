"""Rematerialize a tensor: make it again right before a use, so that it need not be kept until then.

What its making needs and is not there is kept longer, or made again too: where keeping it is too much, nearly
always. So all that a layer's output needs back to the layer before it, its *closure*, is one move: its runs
are found first, then slots are opened for all of them at once. `remove_repeat` is the inverse: what is of no
use without the run taken out goes with it.
"""

from __future__ import annotations

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.compiled import inner
from .events import ADD, EMPTY, MAKE, READ, Sequence, find_event
from .instance import Instance
from .rules import first_slot, on_its_side
from .sequence import between, has_room, put, random_run, take
from .tree import largest_in, peak_slot

DONE, FAILED, CROWDED = 0, 1, 2
"""What became of a move. CROWDED: no empty slot where one is needed; `spread` helps."""

_SHORT, _LONG, _LONG_ONES = 24, 256, 0.3
"""How many runs one tensor may cost at most to be made again: most moves; the others; the part of these."""

_KEPT_TIGHT, _KEPT_ROOMY = 0.1, 0.9
"""How probably an input is kept longer, not made again: at most, where that is too much; where it fits."""

_SAMPLES = 24
"""How many tensors are looked at to find one kept across the peak."""


@inner
def rematerialize(instance: Instance, sequence: Sequence, item: int, slot: int, limit: int) -> int:
    """Make `item` right before `slot`, and what is not there for that."""
    ways = np.empty(_LONG, np.int64)
    length = _closure(instance, sequence, item, slot, limit, ways)
    if length == 0:
        return FAILED
    if not _open(instance, sequence, slot, length):
        return CROWDED
    for k in range(length):
        fits = on_its_side(instance, sequence, instance.ways[ways[k]].operation, slot - 1 - k)
        if not fits or not has_room(instance, sequence, ways[k]):
            return FAILED
        put(instance, sequence, slot - 1 - k, ways[k])
    return DONE


@inner
def _closure(instance: Instance, sequence: Sequence, item: int, slot: int, limit: int, ways: Ints) -> int:
    """What must run before `slot` to have `item` there, into `ways`, the last first. How many; 0: it cannot.

    The first runs of operations are in an order that holds, so these are in the same. An operation's inputs
    ran before it: taken from the last to the first, each is met once.
    """
    at = find_event(sequence, item, slot)
    if at == sequence.items[item].start or sequence.events[at].slot > slot or not _has_maker(instance, item):
        return 0
    longest = _LONG if np.random.random() < _LONG_ONES else _SHORT
    kept_tight = _KEPT_TIGHT * np.random.random() ** 3  # in a closure of thirty hardly one may be kept
    begins = np.empty(_LONG, np.int64)
    length, done = _insert(instance, sequence, instance.items[item].maker, ways, begins, 0), 0
    while done < length:
        operation = instance.ways[ways[done]].operation
        done += 1
        for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
            y = instance.members[k]
            place = find_event(sequence, y, slot)
            end = sequence.items[y].start + sequence.items[y].count
            if place == sequence.items[y].start:
                return 0
            if instance.items[y].summed:
                for later in range(place, end):
                    if sequence.events[later].kind == ADD:
                        return 0
                continue
            if place < end and sequence.events[place].kind != MAKE:
                continue  # it is there
            if not _has_maker(instance, y):
                continue
            tight = largest_in(sequence.tree, sequence.events[place - 1].slot + 1, slot - 1) > limit
            if np.random.random() >= (kept_tight if tight else _KEPT_ROOMY):
                if length == longest:
                    return 0
                length = _insert(instance, sequence, instance.items[y].maker, ways, begins, length)
    return length


@inner
def _has_maker(instance: Instance, item: int) -> bool:
    """It can be made again."""
    way = instance.items[item].maker
    return way >= 0 and instance.operations[instance.ways[way].operation].recomputable


@inner
def _insert(instance: Instance, sequence: Sequence, way: int, ways: Ints, begins: Ints, length: int) -> int:
    """Put the way among the first `length`, sorted by `begins`, its operation's first slot. How many then."""
    begin = first_slot(instance, sequence, instance.ways[way].operation)
    place = length
    while place > 0 and begins[place - 1] < begin:
        place -= 1
    if place > 0 and begins[place - 1] == begin:
        return length
    for k in range(length, place, -1):
        begins[k], ways[k] = begins[k - 1], ways[k - 1]
    begins[place], ways[place] = begin, way
    return length + 1


@inner
def rematerialize_anywhere(instance: Instance, sequence: Sequence, limit: int) -> int:
    """Make a tensor again before a use of it, no matter which."""
    slot = random_run(sequence)
    operation = instance.ways[sequence.way[slot]].operation
    first, last = instance.operations[operation].reads_start, instance.operations[operation].reads_end
    if first == last:
        return FAILED
    x = instance.members[between(first, last)]
    return rematerialize(instance, sequence, x, slot, limit)


@inner
def rematerialize_across_peak(instance: Instance, sequence: Sequence, limit: int) -> int:
    """Of some tensors kept across the peak, make again the one that is cheapest per byte."""
    slot = peak_slot(sequence.tree)
    chosen, use, least = -1, -1, np.inf
    for _ in range(_SAMPLES):
        x = between(0, instance.tensors)
        if instance.items[x].size == 0 or not _has_maker(instance, x):
            continue
        place = find_event(sequence, x, slot)
        end = sequence.items[x].start + sequence.items[x].count
        if place == sequence.items[x].start or place == end:
            continue
        at = sequence.events[place].slot
        if at == slot or sequence.events[place].kind != READ or at >= len(sequence.way) - 2:
            continue
        price = (
            instance.ways[instance.items[x].maker].seconds
            / instance.items[x].size
            * (0.3 + np.random.random())
        )
        if price < least:
            chosen, use, least = x, at, price
    if chosen < 0:
        return FAILED
    return rematerialize(instance, sequence, chosen, use, limit)


@inner
def _open(instance: Instance, sequence: Sequence, slot: int, count: int) -> bool:
    """Have `count` empty slots right before `slot`: the runs there move to the left, in their order."""
    at, found = slot, 0
    while found < count:
        at -= 1
        if at <= 1:
            return False
        found += sequence.way[at] == EMPTY
    if sequence.journal[0, 0] + 2 * (slot - at) >= len(sequence.journal):
        return False
    target = at
    for moved in range(at + 1, slot):
        way = sequence.way[moved]
        if way != EMPTY:
            take(instance, sequence, moved)
            put(instance, sequence, target, way)
            target += 1
    return True
