"""What the search does to a sequence: make a tensor again, drop a repeat, shift a run, run another way.

Every move leaves a valid sequence or says that it failed; then the caller undoes it. A tensor made again
right before a use need not be kept until then; what its making needs is kept longer, or made again too.
"""

from __future__ import annotations

import numpy as np

from ..graphs.compiled import compiled
from .search_instance import Instance
from .search_sequence import ADD, EMPTY, MAKE, READ, Sequence, find_event, has_room, put, take
from .search_tree import largest_in, peak_slot

DONE, FAILED, CROWDED = 0, 1, 2
"""What became of a move. CROWDED: no empty slot where one is needed; `spread` helps."""

_REACH = 6
"""How many slots are looked through for an empty one."""

_DEPTH = 24
"""How many runs one tensor may cost at most to be made again."""

_TIGHT, _ROOMY = 0.9, 0.1
"""How probably an input is made again instead of kept longer: where keeping it is too much, where it fits."""

_SAMPLES = 24
"""How many tensors are looked at to find one kept across the peak."""


@compiled
def make_again(instance: Instance, sequence: Sequence, item: int, slot: int, limit: int) -> int:
    """Make `item` right before `slot`, and what is not there for that."""
    items, slots = np.empty(_DEPTH, np.int64), np.empty(_DEPTH, np.int64)
    items[0], slots[0] = item, slot
    waiting, made = 1, 0
    while waiting:
        waiting -= 1
        x, until = items[waiting], slots[waiting]
        way = instance.items[x].maker
        if way < 0:
            return FAILED
        operation = instance.ways[way].operation
        if not has_room(instance, sequence, way):
            return FAILED
        at = _room_before(instance, sequence, until)
        if at < 0:
            return CROWDED if made < 8 else FAILED
        if not may_repeat(instance, sequence, operation, at):
            return FAILED
        place = find_event(sequence, x, at)
        if place == sequence.items[x].start or sequence.events[place].slot > until:
            return FAILED
        put(instance, sequence, at, way)
        made += 1
        for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
            y = instance.members[k]
            place = find_event(sequence, y, at)
            if place == sequence.items[y].start:
                return FAILED
            end = sequence.items[y].start + sequence.items[y].count
            if instance.items[y].summed:
                for later in range(place + 1, end):
                    if sequence.events[later].kind == ADD:
                        return FAILED
                continue
            is_last = place + 1 == end or sequence.events[place + 1].kind == MAKE
            since = sequence.events[place - 1].slot
            if not is_last or since + 1 >= at:
                continue
            y_way = instance.items[y].maker
            if y_way < 0 or not instance.operations[instance.ways[y_way].operation].again:
                continue
            tight = largest_in(sequence.tree, since + 1, at) > limit
            if np.random.random() < (_TIGHT if tight else _ROOMY):
                if waiting + made + 1 >= _DEPTH:
                    return FAILED
                items[waiting], slots[waiting] = y, at
                waiting += 1
    return DONE


@compiled
def may_repeat(instance: Instance, sequence: Sequence, operation: int, slot: int) -> bool:
    return instance.operations[operation].again and on_its_side(instance, sequence, operation, slot)


@compiled
def on_its_side(instance: Instance, sequence: Sequence, operation: int, slot: int) -> bool:
    """No change in place of what the operation touches lies between `slot` and where it belongs."""
    for k in range(instance.operations[operation].before_start, instance.operations[operation].before_end):
        if first_slot(instance, sequence, instance.members[k]) < slot:
            return False
    for k in range(instance.operations[operation].after_start, instance.operations[operation].after_end):
        if last_slot(instance, sequence, instance.members[k]) > slot:
            return False
    return True


@compiled
def first_slot(instance: Instance, sequence: Sequence, operation: int) -> int:
    item = instance.tensors + operation
    if sequence.items[item].count == 0:
        return len(sequence.way)
    return sequence.events[sequence.items[item].start].slot


@compiled
def last_slot(instance: Instance, sequence: Sequence, operation: int) -> int:
    item = instance.tensors + operation
    if sequence.items[item].count == 0:
        return -1
    return sequence.events[sequence.items[item].start + sequence.items[item].count - 1].slot


@compiled
def count_of(instance: Instance, sequence: Sequence, operation: int) -> int:
    return sequence.items[instance.tensors + operation].count


@compiled
def _empty_before(sequence: Sequence, slot: int) -> int:
    for at in range(slot - 1, max(0, slot - _REACH), -1):
        if sequence.way[at] == EMPTY:
            return at
    return -1


@compiled
def _room_before(instance: Instance, sequence: Sequence, slot: int) -> int:
    """An empty slot right before `slot`; where there is none, runs make room to the left."""
    if sequence.way[slot - 1] == EMPTY:
        return slot - 1
    at = slot - 2
    while sequence.way[at] != EMPTY:
        at -= 1
    if at <= 1 or slot - at > _REACH:
        return -1
    for moved in range(at + 1, slot):
        way = sequence.way[moved]
        take(instance, sequence, moved)
        put(instance, sequence, moved - 1, way)
    return slot - 1


@compiled
def random_run(sequence: Sequence) -> int:
    """A slot with a run."""
    slots = len(sequence.way)
    while True:
        slot = _between(1, slots - 2)
        if sequence.way[slot] != EMPTY:
            return slot


@compiled
def make_again_anywhere(instance: Instance, sequence: Sequence, limit: int) -> int:
    """Make a tensor again before a use of it, no matter which."""
    slot = random_run(sequence)
    operation = instance.ways[sequence.way[slot]].operation
    first, last = instance.operations[operation].reads_start, instance.operations[operation].reads_end
    if first == last:
        return FAILED
    x = instance.members[_between(first, last)]
    return make_again(instance, sequence, x, slot, limit)


@compiled
def make_again_across_peak(instance: Instance, sequence: Sequence, limit: int) -> int:
    """Of some tensors kept across the peak, make again the one that is cheapest per byte."""
    slot = peak_slot(sequence.tree)
    chosen, use, least = -1, -1, np.inf
    for _ in range(_SAMPLES):
        x = _between(0, instance.tensors)
        way = instance.items[x].maker
        if (
            way < 0
            or instance.items[x].size == 0
            or not instance.operations[instance.ways[way].operation].again
        ):
            continue
        place = find_event(sequence, x, slot)
        end = sequence.items[x].start + sequence.items[x].count
        if place == sequence.items[x].start or place == end:
            continue
        at = sequence.events[place].slot
        if at == slot or sequence.events[place].kind != READ or at >= len(sequence.way) - 2:
            continue
        price = instance.ways[way].seconds / instance.items[x].size * (0.3 + np.random.random())
        if price < least:
            chosen, use, least = x, at, price
    if chosen < 0:
        return FAILED
    return make_again(instance, sequence, chosen, use, limit)


@compiled
def may_take(instance: Instance, sequence: Sequence, slot: int) -> bool:
    """The run is a repeat, what it makes is there without it, and random operations keep their order."""
    way = sequence.way[slot]
    operation = instance.ways[way].operation
    item = instance.tensors + operation
    if sequence.items[item].count < 2:
        return False
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        x = instance.members[k]
        place = sequence.items[x].start
        if sequence.events[place].slot == slot:
            is_last = sequence.items[x].count == 1
            if not is_last and sequence.events[place + 1].kind == READ:
                return False
    start = sequence.items[item].start
    if sequence.events[start].slot == slot:
        return keeps_random_order(instance, sequence, operation, sequence.events[start + 1].slot)
    return True


@compiled
def keeps_random_order(instance: Instance, sequence: Sequence, operation: int, first: int) -> bool:
    """The operation's first run may be at `first`."""
    earlier, later = instance.operations[operation].earlier, instance.operations[operation].later
    if earlier >= 0 and first_slot(instance, sequence, earlier) > first:
        return False
    return not (later >= 0 and first_slot(instance, sequence, later) < first)


@compiled
def remove_repeat(instance: Instance, sequence: Sequence) -> int:
    for _ in range(64):
        slot = random_run(sequence)
        if may_take(instance, sequence, slot):
            take(instance, sequence, slot)
            return DONE
    return FAILED


@compiled
def shift(instance: Instance, sequence: Sequence) -> int:
    """Move a run to another slot between what makes its inputs and the first use of its outputs."""
    slot = random_run(sequence)
    way = sequence.way[slot]
    operation = instance.ways[way].operation
    low, high = 0, len(sequence.way) - 2
    for k in range(instance.operations[operation].reads_start, instance.operations[operation].reads_end):
        y = instance.members[k]
        place = find_event(sequence, y, slot) - 1
        start = sequence.items[y].start
        while place > start and sequence.events[place].kind == READ:
            place -= 1
        low = max(low, sequence.events[place].slot)
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        x = instance.members[k]
        place = find_event(sequence, x, slot) + 1
        end = sequence.items[x].start + sequence.items[x].count
        while place < end and sequence.events[place].kind == ADD:
            place += 1
        if place < end:
            high = min(high, sequence.events[place].slot)
        before = find_event(sequence, x, slot) - 1
        if before >= sequence.items[x].start and not instance.items[x].summed:
            low = max(low, sequence.events[before].slot)
    if high - low < 3:
        return FAILED
    choice = np.random.random()
    if choice < 0.25:
        target = high
    elif choice < 0.4 and low:
        target = min(low + 1 + _REACH // 2, high)
    elif choice < 0.7:
        target = _between(low + 1, high)
    else:
        target = min(high, max(low + 2, slot + _between(-40, 41)))
    at = _empty_before(sequence, target)
    if at <= low or at == slot:
        return FAILED
    take(instance, sequence, slot)
    if not on_its_side(instance, sequence, operation, at):
        return FAILED
    put(instance, sequence, at, way)
    first = first_slot(instance, sequence, operation)
    is_random = instance.operations[operation].earlier >= 0 or instance.operations[operation].later >= 0
    if is_random and not keeps_random_order(instance, sequence, operation, first):
        return FAILED
    return DONE


@compiled
def run_another_way(instance: Instance, sequence: Sequence) -> int:
    """The same operation in another of its modes."""
    slot = random_run(sequence)
    way = sequence.way[slot]
    operation = instance.ways[way].operation
    first = instance.operations[operation].plain
    other = first
    while other < len(instance.ways) and instance.ways[other].operation == operation:
        other += 1
    if other - first < 2:
        return FAILED
    chosen = _between(first, other)
    if chosen == way or not has_room(instance, sequence, chosen):
        return FAILED
    take(instance, sequence, slot)
    put(instance, sequence, slot, chosen)
    for k in range(instance.ways[way].writes_start, instance.ways[way].writes_end):
        x = instance.members[k]
        start = sequence.items[x].start
        lost = sequence.items[x].count > 0 and sequence.events[start].kind == READ
        if lost or (instance.items[x].summed and chosen != way):
            return FAILED
    return DONE


@compiled
def clear_useless(instance: Instance, sequence: Sequence) -> None:
    """Take out the repeats that have become useless, and those that this makes useless."""
    useless = sequence.useless
    while useless[0]:
        slot = useless[int(useless[0])]
        useless[0] -= 1
        if sequence.way[slot] != EMPTY and sequence.useful[slot] == 0 and may_take(instance, sequence, slot):
            take(instance, sequence, slot)


@compiled
def _between(first: int, end: int) -> int:
    """A random number from first to end − 1."""
    return np.random.randint(first, end)
