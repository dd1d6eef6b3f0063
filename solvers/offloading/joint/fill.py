"""What stays on the device: greedily, the tensors that save most link time for the memory they take.

All are away first, which needs the least memory. Then absences are struck out, in some order of preference,
wherever the memory has room. An absence costs the same transfers however long it is: the short ones, and
those beside the peak, are the first to avoid (Belady's rule). Where the link is what counts, whole persistent
tensors are better kept, which also saves their way down, and evenly spread over the iteration: between those
that move, there is then work for the others to come in. No simulation is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Ints
from .state import Absence, State


def spans(state: State, absence: Absence) -> Iterator[tuple[int, int]]:
    """The moments from … to (excluded), within one turn, at which the tensor would be there if it stayed."""
    start, end = 2 * absence.after + 2, 2 * absence.before
    runs = len(state.runs)
    if absence.before < runs:
        yield start, end
    elif absence.before == runs and not state.lives[absence.life].cyclic:
        yield start, state.turn
    else:
        yield start, state.turn
        yield 0, 2 * (absence.before - runs)


def fits(state: State, curve: Ints, absence: Absence, cap: float) -> bool:
    size = int(state.graph.tensors.bytes[absence.tensor])
    return all(high <= low or int(curve[low:high].max()) + size <= cap for low, high in spans(state, absence))


def send_all(state: State, chosen: Iterable[Absence]) -> None:
    state.send([(absence.tensor, absence.after) for absence in chosen])


def fill(state: State, chosen: Iterable[Absence], cap: float) -> None:
    """Strike out absences while the memory stays below `cap`. chosen: absences, by preference."""
    curve, kept = state.curve.copy(), list[Absence]()
    for absence in dict.fromkeys(chosen):
        if fits(state, curve, absence, cap):
            size = int(state.graph.tensors.bytes[absence.tensor])
            for low, high in spans(state, absence):
                curve[low:high] += size
            kept.append(absence)
    state.keep([(absence.tensor, absence.after) for absence in kept])


def shortest_first(state: State, chosen: Sequence[Absence]) -> list[Absence]:
    """By the seconds of computation that an absence spans, then by size."""
    seconds = durations(state, chosen)
    sizes = state.graph.tensors.bytes
    keys = [
        (second, -int(sizes[absence.tensor]), absence)
        for second, absence in zip(seconds, chosen, strict=True)
    ]
    return [absence for _second, _size, absence in sorted(keys)]


def orders(state: State, chosen: Sequence[Absence]) -> Iterator[list[Absence]]:
    """Orders of preference: the shortest first; whole persistent tensors, evenly spread, last or first."""
    shortest = shortest_first(state, chosen)
    yield shortest
    passing = [absence for absence in shortest if not state.lives[absence.life].cyclic]
    by_life: dict[int, list[Absence]] = {}
    for absence in sorted(chosen, key=lambda absence: absence.after):
        if state.lives[absence.life].cyclic:
            by_life.setdefault(absence.life, []).append(absence)
    whole = [absence for life in _spread(list(by_life)) for absence in by_life[life]]
    if whole:
        yield [*passing, *whole, *shortest]
        yield [*whole, *passing, *shortest]


def _spread(items: Sequence[int]) -> list[int]:
    """So that every beginning of the list is spread evenly (van der Corput's sequence)."""
    bits = max(1, (len(items) - 1).bit_length())
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(1 << bits)]
    return [items[index] for index in reversed_bits if index < len(items)]


def durations(state: State, chosen: Sequence[Absence]) -> NDArray[np.float64]:
    """Seconds on the compute queue between the uses at both ends of each absence."""
    runs, period = len(state.runs), float(state.starts[-1])
    after = np.array([absence.after for absence in chosen], np.int64)
    before = np.array([absence.before for absence in chosen], np.int64)
    turns = before // runs if runs else before
    seconds = state.starts[before % runs] + turns * period - state.starts[after + 1]
    return seconds.astype(np.float64)
