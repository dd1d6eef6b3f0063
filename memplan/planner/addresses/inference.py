"""Lower bounds on offsets of copies that are not placed yet, and proofs that some have no room.

Copies are placed from below: what is not placed (it waits) will be above all that is placed and shares a step
with it. In each section the waiting copies are jobs of one machine: size is duration, offset is start, the
capacity is the deadline of all. Rules, until nothing changes:

- *Room.* In the order of their lower bounds the jobs of a section, each as early as it can be, end by the
  capacity. No order ends earlier, so if this one does not, there is no layout.
- *Not first.* If a job and some others have more bytes than there are from its lower bound to the capacity,
  it is above one of the others: at least at the least end among them.
- *Support.* A copy whose lower bound is above what is placed rests on a waiting copy: at least at the least
  end of those that share a section with it. (A copy that rests on nothing could be moved down.)

Source: sections are of MiniMalloc (Moffitt, 2023); the rules are those of one machine with release dates
(Carlier & Pinson, 1989).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import inner

Bits = NDArray[np.bool_]

FAR = 2**62
"""An offset above all."""


class Problem(NamedTuple):
    """Copies to place: their sizes, sections (`Sections`), and the capacity in bytes."""

    size: Ints
    own: Ints
    own_start: Ints
    members: Ints
    member_start: Ints
    capacity: int


class State(NamedTuple):
    """A partial layout and its lower bounds.

    waits: per copy, whether it is not placed. skyline: per copy, the highest top of what is placed and shares
    a section with it; the offset of a placed copy. lowest: per copy, the lower bound on its offset.
    left: bytes of waiting copies per section. stale: sections to look at.
    least, least_of, second: per section the least end of a waiting copy, whose, and the least of the others.
    changes: rows (copy, or count + copy; value before), to undo. mark: changes are noted once per mark.
    noted: per copy, twice, the mark at which it was noted.
    numbers: how many changes; mark; work and decisions so far.
    weight: per copy, how often it was in a contradiction.
    """

    waits: Bits
    skyline: Ints
    lowest: Ints
    left: Ints
    stale: Bits
    least: Ints
    least_of: Ints
    second: Ints
    changes: Ints
    noted: Ints
    numbers: Ints
    weight: Floats


CHANGES, MARK, WORK, DECISIONS = 0, 1, 2, 3


class Scratch(NamedTuple):
    """Space for one section's copies: by lower bound, and by least end from above, with these."""

    by_bound: Ints
    by_end: Ints
    ends: Ints


@inner
def note(state: State, at: int, value: int) -> None:
    """Note a value that is about to change, unless it was since the last mark."""
    if state.noted[at] != state.numbers[MARK]:
        state.noted[at] = state.numbers[MARK]
        state.changes[state.numbers[CHANGES], 0] = at
        state.changes[state.numbers[CHANGES], 1] = value
        state.numbers[CHANGES] += 1


@inner
def lift(problem: Problem, state: State, x: int, offset: int) -> bool:
    """Raise a copy's lower bound. Returns False if it has no room there."""
    if offset + problem.size[x] > problem.capacity:
        state.weight[x] += 1.0
        return False
    note(state, len(problem.size) + x, int(state.lowest[x]))
    state.lowest[x] = offset
    touch(problem, state, x)
    return True


@inner
def touch(problem: Problem, state: State, x: int) -> None:
    for at in range(problem.own_start[x], problem.own_start[x + 1]):
        state.stale[problem.own[at]] = True


@inner
def support(problem: Problem, state: State, x: int) -> int:
    """Return the least end of a waiting copy that shares a section with `x`."""
    found = FAR
    for at in range(problem.own_start[x], problem.own_start[x + 1]):
        s = problem.own[at]
        found = min(found, int(state.second[s] if state.least_of[s] == x else state.least[s]))
    return found


@inner
def infer(problem: Problem, state: State, scratch: Scratch, first: int, sections: int, among: Ints) -> bool:
    """Apply the rules in a run of sections. Returns False if there is no layout.

    among: the run's copies, placed ones too.
    """
    changed = True
    while changed:
        changed = False
        state.numbers[WORK] += (sections + len(among)) >> 3  # most of these looks end at once
        for number in range(sections):
            s = first + number
            if s >= len(state.left):
                s -= len(state.left)
            if state.stale[s]:
                state.stale[s], changed = False, True
                if not _in_section(problem, state, scratch, s):
                    return False
        if changed:
            for x in among:
                if state.waits[x] and state.lowest[x] > state.skyline[x]:
                    offset = support(problem, state, x)
                    if offset > state.lowest[x] and not lift(problem, state, x, offset):
                        return False
    return True


@inner
def _in_section(problem: Problem, state: State, scratch: Scratch, s: int) -> bool:
    """Apply *room* and *not first* in a section, and find its least ends."""
    size, lowest, by_bound = problem.size, state.lowest, scratch.by_bound
    state.least[s], state.least_of[s], state.second[s] = FAR, -1, FAR
    count = 0
    if state.left[s] > 0:
        state.numbers[WORK] += problem.member_start[s + 1] - problem.member_start[s]
        for at in range(problem.member_start[s], problem.member_start[s + 1]):
            x = problem.members[at]
            if not state.waits[x]:
                continue
            end = lowest[x] + size[x]
            if end < state.least[s]:
                state.second[s] = state.least[s]
                state.least[s], state.least_of[s] = end, x
            elif end < state.second[s]:
                state.second[s] = end
            place = count
            while place > 0 and lowest[by_bound[place - 1]] > lowest[x]:
                by_bound[place] = by_bound[place - 1]
                place -= 1
            by_bound[place] = x
            count += 1
    if count == 0 or lowest[by_bound[count - 1]] + state.left[s] <= problem.capacity:
        return True  # neither rule can apply: the highest bound leaves room for all
    end = 0
    for place in range(count):
        end = max(end, lowest[by_bound[place]]) + size[by_bound[place]]
    if end > problem.capacity:
        for place in range(count):
            state.weight[by_bound[place]] += 1.0
        return False
    return count == 1 or _not_first(problem, state, scratch, s, count)


@inner
def _not_first(problem: Problem, state: State, scratch: Scratch, s: int, count: int) -> bool:
    size, lowest, by_end, ends = problem.size, state.lowest, scratch.by_end, scratch.ends
    for number in range(count):
        x = scratch.by_bound[number]
        end = lowest[x] + size[x]
        place = number
        while place > 0 and ends[place - 1] < end:
            ends[place], by_end[place] = ends[place - 1], by_end[place - 1]
            place -= 1
        ends[place], by_end[place] = end, x
    state.numbers[WORK] += 2 * count
    for number in range(count):
        x = scratch.by_bound[number]
        room = problem.capacity - lowest[x] - size[x]
        if state.left[s] - size[x] <= room:
            continue
        # The fewest others that are too much, those with the highest ends first: `x` is above one of them.
        bytes_, place = 0, -1
        while bytes_ <= room:
            place += 1
            if by_end[place] != x:
                bytes_ += size[by_end[place]]
        if ends[place] > lowest[x] and not lift(problem, state, x, ends[place]):
            return False
    return True
