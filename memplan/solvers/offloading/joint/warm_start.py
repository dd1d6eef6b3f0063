"""A state of the joint search from a schedule that some solver found: decisions, and slots of copies.

The search places fetches, and reads from the disk, by look-ahead and order of need, and some so many slots
later than that (State.move, State.read_at). The shifts with which all are where the schedule has them
is sought in a few rounds, each of which corrects what the last one missed. The faster of this and of none is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ....planner.residency.from_schedule import recover_residency
from ....planner.residency.residency import Residency, TensorUse
from ...candidates import device_limit
from ...links import worth_moving
from ...problem import Problem
from .alternatives import Alternatives, Together, take_place, with_alternatives
from .drops import Drops
from .slots import Slots
from .start import best_timing
from .state import State, StateFigures
from .timeline import ABSENT

_ROUNDS = 12

Opening = tuple[State, StateFigures]


def opened(
    problem: Problem, residencies: Iterable[Residency], drops: Drops, enough: Callable[[], bool]
) -> Opening | None:
    """Return the fastest state of these decisions; None if none fits.

    A state has slots for what could be recomputed, or none if its fetches do not fit among them.
    enough: true once what is found will do: one that fits, with the shifts found so far.
    """
    found = list[Opening]()
    for residency in residencies:
        slots = Slots(drops, residency.runs)
        for runs, places in ((slots.runs, slots.places), (residency.runs, range(len(residency.runs)))):
            more = with_alternatives(drops, runs)
            state, outcome = _read(problem, residency, more, [more.inside[place] for place in places], enough)
            if not outcome.excess:
                found.append((state, outcome))
                break
        if found and enough():
            break
    return min(found, key=lambda each: each[1].seconds, default=None)


def _read(
    problem: Problem,
    residency: Residency,
    more: Alternatives,
    places: Sequence[int],
    enough: Callable[[], bool],
) -> Opening:
    """Return the state of a residency's decisions, and what it comes to.

    more: the residency's runs and ABSENT ones. places: positions of its own runs among them.
    """
    graph, machine = problem.graph, problem.machine or problem.graph.machine
    assert machine is not None, "it has links"
    state = State(graph, machine, device_limit(problem), more.runs, groups=more.groups)
    # A tensor that no run uses has the position -1, and inside[-1] is -1.
    inside = [*places, -1]  # the last for what no run uses
    offloaded = {(x, inside[after]): memory for (x, after), memory in residency.offloaded.items()}
    state.send_as(offloaded)
    sizes = graph.tensors.bytes
    # A tensor that the schedule moves can be moved, however small.
    state.smallest = min([worth_moving(machine), *(int(sizes[x]) for x, _position in offloaded)])
    best = best_timing(state)
    if residency.prefetch_slots or residency.offload_slots:
        kept = state.mark()
        placed = _placed(state, residency, places, best, enough)
        if _worth(placed) < _worth(best):
            best = placed
        else:
            state.rollback(kept)
    best = _overlapping(state, best)
    state.forget()
    return state, best


def _overlapping(state: State, best: StateFigures) -> StateFigures:
    """Take the alternatives of one look-ahead wherever there is room, if that is faster."""
    begun, taken = state.mark(), list[tuple[Together, Together]]()
    for number in range(1, max(map(len, state.groups), default=0)):
        now = list[tuple[Together, Together]]()
        for positions, *others in state.groups:
            if state.runs[positions[0]][1] == ABSENT or len(others) < number:
                continue
            mark, other = state.mark(), others[number - 1]
            take_place(state, positions, other)
            if state.demand > state.budget:
                state.rollback(mark)
            else:
                now.append((positions, other))
        outcome = best_timing(state)
        state.rollback(begun)
        if _worth(outcome) < _worth(best):
            best, taken = outcome, now
    for positions, other in taken:
        take_place(state, positions, other)
    return best


def _placed(
    state: State, residency: Residency, places: Sequence[int], best: StateFigures, enough: Callable[[], bool]
) -> StateFigures:
    """Shift the transfers towards the slots that they have in the residency, and keep the best of some
    rounds.

    places: positions of the residency's runs in the state. best: the outcome without shifts.
    enough: true once no further round is needed.
    """
    slots = [*places, len(state.runs)]
    for (x, position), slot in residency.offload_slots.items():
        state.delay((x, places[position]), slots[slot])
    outcome, before = state.evaluate(best.look_ahead, best.reserve), None
    found = [(outcome, state.decided.copy())]
    for _ in range(_ROUNDS):
        missed = None if enough() else _missed(state, residency, slots, outcome)
        # The same misses twice: the shifts have no effect any more.
        if missed is None or missed == before:
            break
        before = missed
        decided, (moved, reads) = state.decided, missed
        for place, shift in moved.items():
            state.move(place, decided.shift.get(place, 0) + shift or None)
        for place, shift in reads.items():
            state.read_at(place, decided.read_shift.get(place, 0) + shift or None)
        outcome = state.evaluate(best.look_ahead, best.reserve)
        found.append((outcome, decided.copy()))
    outcome, decided = min(found, key=lambda each: _worth(each[0]))
    for place in {*state.decided.shift, *decided.shift}:
        state.move(place, decided.shift.get(place))
    for place in {*state.decided.read_shift, *decided.read_shift}:
        state.read_at(place, decided.read_shift.get(place))
    return outcome


def _missed(
    state: State, residency: Residency, slots: Sequence[int], outcome: StateFigures
) -> tuple[Mapping[TensorUse, int], Mapping[TensorUse, int]]:
    """Return by how many slots each misplaced fetch, and each misplaced read from disk, comes too early."""
    now = recover_residency(state.graph, state.schedule(outcome))

    def at(slot: int, position: int) -> int:
        # A slot after its use belongs to the iteration before, which has one slot more than runs.
        return slots[slot] - (0 if slot <= position else len(state.runs) + 1)

    def apart(wanted: Mapping[TensorUse, int], found: Mapping[TensorUse, int]) -> Mapping[TensorUse, int]:
        return {
            (x, slots[position]): at(slot, position) - at(found[x, position], position)
            for (x, position), slot in wanted.items()
            if found.get((x, position), slot) != slot
        }

    return apart(residency.prefetch_slots, now.prefetch_slots), apart(residency.read_slots, now.read_slots)


def _worth(outcome: StateFigures) -> tuple[float, float]:
    """Return the rank of an outcome; less is better."""
    return outcome.excess, outcome.seconds
