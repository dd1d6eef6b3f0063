"""A layout within a given capacity by a complete search, or the proof that there is none.

Any layout can be pushed down until each copy is at the bottom or rests on another one. Of these layouts the
search decides, for one copy after the other: either it rests on what is placed, and is placed there; or it
rests on one that waits, and its lower bound rises to the least end of those.

    ┌────┐           first: x is at the skyline.     else: x is at least at the end of y, the lower
    │ y  │  x?       What waits is above it.         of those that share a section with it
    └────┴──────     ═══ skyline

Inference (inference.py) follows each decision. What falls apart in time, once no waiting copy connects it, is
searched part by part: if one part has no layout, what was decided in the others does not matter, and the
search goes back to the decision that split them. A copy with no waiting copy alongside it is placed for good.

Sources: Moffitt, MiniMalloc (2023): placement from below, preference for low offsets, parts in time; the
decision in two is that of active schedules (Giffler & Thompson, 1960).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.compiled import compiled, inner
from .inference import CHANGES, DECISIONS, FAR, MARK, WORK, Problem, Scratch, State, infer, lift, note, touch
from .lifetimes import Lifetimes
from .sections import Sections

NONE, FOUND, LIMIT = 0, 1, 2
"""Ends of a search: proven that there is no layout; a layout; the limit was reached."""

LOWEST, RANK = 0, 1
"""The next copy, of those that nothing fits below: the lowest; or, of those below the least end, the first in
the order."""

_CHANGES, _POOL = 2**20, 64
"""Changes that can be undone, at most; copies in lists of parts, at most, per copy."""


class _Parts(NamedTuple):
    """Parts in time: a run of sections, the copies in it (from begin to end in `pool`), the part to search
    after it, and the depth of the decision that split it off."""

    first: Ints
    sections: Ints
    begin: Ints
    end: Ints
    next: Ints
    split: Ints
    pool: Ints


class _Decisions(NamedTuple):
    """Decisions by depth: the part; the copy; changes, parts and pool before it; whether a copy waits
    alongside it."""

    part: Ints
    copy: Ints
    changes: Ints
    parts: Ints
    pool: Ints
    alongside: Ints


class Tried(NamedTuple):
    """The end of a search; offsets, if a layout was found; its work, in looks at a copy."""

    end: int
    offsets: Ints
    work: int


def search(
    rows: Lifetimes,
    sections: Sections,
    capacity: int,
    order: Ints,
    *,
    choice: int,
    decisions: int,
    effort: int,
    weight: Floats,
) -> Tried:
    """Search for offsets within `capacity` bytes.

    sections: of the rows, none of them always resident. order: rows, those to place first in front.
    choice: LOWEST or RANK. decisions, effort: how many decisions it takes at most, and how much work.
    weight: per row, grows by one for each contradiction.
    """
    # The compiled search numbers copies by preference: all arrays are permuted, the offsets back at the end.
    rank = np.argsort(order)
    counts = np.diff(sections.own_start)[order]
    own_start = np.concatenate([[0], np.cumsum(counts)])
    shift = np.repeat(sections.own_start[:-1][order] - own_start[:-1], counts)
    own = sections.own[np.arange(len(sections.own)) + shift]
    of_member = np.repeat(np.arange(sections.number), np.diff(sections.member_start))
    members = rank[sections.members]
    # In order of preference within each section.
    members = members[np.lexsort((members, of_member))]
    offsets, outcome, weights = np.zeros(len(order), np.int64), np.zeros(2, np.int64), weight[order]
    problem = Problem(
        size=rows.size[order],
        own=own,
        own_start=own_start,
        members=members,
        member_start=sections.member_start,
        capacity=capacity,
    )
    limits = np.array([decisions, effort])
    _search(problem, sections.number, choice, limits, weights, offsets, outcome)
    weight[order] = weights
    return Tried(int(outcome[0]), offsets[rank], int(outcome[1]))


@compiled
def _search(
    problem: Problem, sections: int, choice: int, limits: Ints, weight: Floats, offsets: Ints, outcome: Ints
) -> None:
    """Fill `offsets` and `outcome`: the end, and the work. Copies are in the order of preference."""
    count = len(problem.size)
    numbers = np.zeros(4, np.int64)
    state = State(
        np.ones(count, np.bool_),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(sections, np.int64),
        np.ones(sections, np.bool_),
        np.empty(sections, np.int64),
        np.empty(sections, np.int64),
        np.empty(sections, np.int64),
        np.empty((_CHANGES + _POOL * count, 2), np.int64),
        np.full(2 * count, -1),
        numbers,
        weight,
    )
    scratch = Scratch(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64))
    crossing = np.zeros(sections, np.int64)  # waiting copies in a section and the next
    for x in range(count):
        _count(problem, state, crossing, x, 1)
    most = 2 * (count + sections) + 2
    parts = _Parts(
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.empty(_CHANGES + _POOL * count, np.int64),
    )
    parts.sections[0], parts.end[0], parts.next[0], parts.split[0] = sections, count, -1, -1
    parts.pool[:count] = np.arange(count)
    known, pooled = 1, count
    decisions = _Decisions(
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
    )
    depth, part = 0, 0
    decisions.part[0] = 0
    holds = infer(problem, state, scratch, 0, sections, parts.pool[:count])
    if count == 0:
        outcome[0] = FOUND
        return
    while True:
        if not holds:
            last = depth - 1
            if depth == 0 or decisions.part[last] != part:
                last = int(parts.split[part])  # the part has no layout, whatever was decided in others
            if last < 0:
                outcome[0], outcome[1] = NONE, numbers[WORK]
                return
            _undo(problem, state, crossing, decisions, last, depth)
            depth, part = last, int(decisions.part[last])
            known, pooled = int(decisions.parts[depth]), int(decisions.pool[depth])
            if decisions.alongside[depth] == 0:
                continue  # it was in nobody's way
            x = int(decisions.copy[depth])
            # The other decision: x rests on a copy that waits, so on the lowest end of these at least.
            holds = lift(problem, state, x, _least_beside(problem, state, x))
            if holds:
                among = parts.pool[parts.begin[part] : parts.end[part]]
                run = int(parts.sections[part])
                holds = infer(problem, state, scratch, int(parts.first[part]), run, among)
            continue
        # Before a decision, as the compiled code can't make its arrays longer.
        full = numbers[CHANGES] + 4 * count > len(state.changes) or pooled + count > len(parts.pool)
        numbers[DECISIONS] += 1
        if numbers[DECISIONS] > limits[0] or numbers[WORK] > limits[1] or full:
            outcome[0], outcome[1] = LIMIT, numbers[WORK]
            return
        among = parts.pool[parts.begin[part] : parts.end[part]]
        x = _chosen(problem, state, among, choice)
        decisions.part[depth], decisions.copy[depth] = part, x
        decisions.changes[depth], decisions.parts[depth], decisions.pool[depth] = (
            numbers[CHANGES],
            known,
            pooled,
        )
        holds, alongside, splits = _place(problem, state, crossing, x)
        decisions.alongside[depth] = alongside
        depth += 1
        run = int(parts.sections[part])
        if holds:
            holds = infer(problem, state, scratch, int(parts.first[part]), run, among)
        if holds and splits:
            known, pooled, part = _split(problem, state, crossing, parts, part, known, pooled, depth - 1)
            if part < 0:
                outcome[0], outcome[1] = FOUND, numbers[WORK]
                # Of a placed copy, `skyline` stays at its offset.
                offsets[:] = state.skyline
                return


@inner
def _chosen(problem: Problem, state: State, among: Ints, choice: int) -> int:
    """Return the next copy to decide: one that may be at the skyline, with no room for a waiting copy below.

    There is one: the copy with the least lower bound.
    """
    state.numbers[WORK] += len(among)
    end = FAR
    if choice == RANK:
        for x in among:
            if state.waits[x]:
                # A copy that begins below every end has no room for another one below it.
                end = min(end, state.lowest[x] + problem.size[x])
    best, lowest = -1, FAR
    for x in among:
        if state.waits[x] and state.lowest[x] == state.skyline[x] and state.lowest[x] < min(lowest, end):
            best, lowest = int(x), int(state.lowest[x])
            if choice == RANK:
                break
    return best


@inner
def _place(problem: Problem, state: State, crossing: Ints, x: int) -> tuple[bool, bool, bool]:
    """Place a copy at the skyline.

    Returns whether all that waits has room above it, whether a copy waits alongside it, and whether a gap
    between sections is crossed by no waiting copy any more.
    """
    state.numbers[MARK] += 1
    state.waits[x] = False
    alongside = False
    splits = _count(problem, state, crossing, x, -1)
    top, holds = state.skyline[x] + problem.size[x], True
    for at in range(problem.own_start[x], problem.own_start[x + 1]):
        s = problem.own[at]
        if state.left[s] == 0:
            continue
        alongside = True
        state.numbers[WORK] += problem.member_start[s + 1] - problem.member_start[s]
        for place in range(problem.member_start[s], problem.member_start[s + 1]):
            y = problem.members[place]
            if state.waits[y] and state.skyline[y] < top:
                note(state, y, int(state.skyline[y]))
                state.skyline[y] = top
                if state.lowest[y] < top:
                    holds = lift(problem, state, y, top) and holds
    return holds, alongside, splits


@inner
def _count(problem: Problem, state: State, crossing: Ints, x: int, change: int) -> bool:
    """Count a copy as waiting (1), or no more (-1). Returns whether a section, or a gap, has none now."""
    empty = False
    for at in range(problem.own_start[x], problem.own_start[x + 1]):
        s = problem.own[at]
        state.stale[s] = True
        state.left[s] += change * problem.size[x]
        if at + 1 < problem.own_start[x + 1]:
            crossing[s] += change
            empty = empty or crossing[s] == 0
        empty = empty or state.left[s] == 0
    return empty


@inner
def _undo(
    problem: Problem, state: State, crossing: Ints, decisions: _Decisions, last: int, depth: int
) -> None:
    """Undo the decisions from `last` on."""
    count = len(problem.size)
    for number in range(last, depth):
        x = decisions.copy[number]
        state.waits[x] = True
        _count(problem, state, crossing, x, 1)
    # The newest first: a value may have changed several times.
    while state.numbers[CHANGES] > decisions.changes[last]:
        state.numbers[CHANGES] -= 1
        x, value = state.changes[state.numbers[CHANGES]]
        if x < count:
            state.skyline[x] = value
        else:
            state.lowest[x - count] = value
            touch(problem, state, x - count)
    state.numbers[MARK] += 1


@inner
def _least_beside(problem: Problem, state: State, x: int) -> int:
    """Return the least end of a waiting copy that shares a section with `x`, not from `State.least`: that is
    stale."""
    found = FAR
    for at in range(problem.own_start[x], problem.own_start[x + 1]):
        s = problem.own[at]
        for place in range(problem.member_start[s], problem.member_start[s + 1]):
            y = problem.members[place]
            if y != x and state.waits[y]:
                found = min(found, int(state.lowest[y] + problem.size[y]))
    return found


@inner
def _split(
    problem: Problem,
    state: State,
    crossing: Ints,
    parts: _Parts,
    part: int,
    known: int,
    pooled: int,
    depth: int,
) -> tuple[int, int, int]:
    """Split a part at the gaps that no waiting copy crosses. Returns the numbers of parts and of copies in
    lists, and the part to search next, -1 if there is none."""
    sections, first, run = len(crossing), int(parts.first[part]), int(parts.sections[part])
    head = int(parts.next[part])
    if run == sections:  # the whole cycle: begin after such a gap, if there is one
        for s in range(sections):
            if crossing[s] == 0:
                first = (s + 1) % sections
                break
    end = 0
    while end < run:
        begin = end
        while end + 1 < run and crossing[(first + end) % sections] > 0:
            end += 1
        end += 1
        start = (first + begin) % sections
        if state.left[start] == 0:
            continue
        parts.first[known], parts.sections[known], parts.begin[known] = start, end - begin, pooled
        for x in parts.pool[parts.begin[part] : parts.end[part]]:
            # By its first section: a waiting copy crosses all gaps in its span, so it lies in one part.
            if state.waits[x] and (problem.own[problem.own_start[x]] - start) % sections < end - begin:
                parts.pool[pooled] = x
                pooled += 1
        parts.end[known], parts.next[known], parts.split[known] = pooled, head, depth
        head = known
        known += 1
    return known, pooled, head
