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
from .state import Gap, State


def spans(state: State, gap: Gap) -> Iterator[tuple[int, int]]:
    """The moments from … to (excluded), within one turn, at which the tensor would be there if it stayed."""
    start, end = 2 * gap.after + 2, 2 * gap.before
    runs = len(state.runs)
    if gap.before < runs:
        yield start, end
    elif gap.before == runs and not state.lives[gap.life].cyclic:
        yield start, state.turn
    else:
        yield start, state.turn
        yield 0, 2 * (gap.before - runs)


def fits(state: State, curve: Ints, gap: Gap, cap: float) -> bool:
    size = int(state.graph.tensors.bytes[gap.tensor])
    return all(high <= low or int(curve[low:high].max()) + size <= cap for low, high in spans(state, gap))


def send_all(state: State, chosen: Iterable[Gap]) -> None:
    state.send([(gap.tensor, gap.after) for gap in chosen])


def fill(state: State, chosen: Iterable[Gap], cap: float) -> None:
    """Strike out absences while the memory stays below `cap`. chosen: absences, by preference."""
    curve, kept = state.curve.copy(), list[Gap]()
    for gap in dict.fromkeys(chosen):
        if fits(state, curve, gap, cap):
            size = int(state.graph.tensors.bytes[gap.tensor])
            for low, high in spans(state, gap):
                curve[low:high] += size
            kept.append(gap)
    state.keep([(gap.tensor, gap.after) for gap in kept])


def shortest_first(state: State, chosen: Sequence[Gap]) -> list[Gap]:
    """By the seconds of computation that an absence spans, then by size."""
    seconds = durations(state, chosen)
    sizes = state.graph.tensors.bytes
    keys = [(second, -int(sizes[gap.tensor]), gap) for second, gap in zip(seconds, chosen, strict=True)]
    return [gap for _second, _size, gap in sorted(keys)]


def orders(state: State, chosen: Sequence[Gap]) -> Iterator[list[Gap]]:
    """Orders of preference: the shortest first; whole persistent tensors, evenly spread, last or first."""
    shortest = shortest_first(state, chosen)
    yield shortest
    passing = [gap for gap in shortest if not state.lives[gap.life].cyclic]
    by_life: dict[int, list[Gap]] = {}
    for gap in sorted(chosen, key=lambda gap: gap.after):
        if state.lives[gap.life].cyclic:
            by_life.setdefault(gap.life, []).append(gap)
    whole = [gap for life in _spread(list(by_life)) for gap in by_life[life]]
    if whole:
        yield [*passing, *whole, *shortest]
        yield [*whole, *passing, *shortest]


def _spread(items: Sequence[int]) -> list[int]:
    """So that every beginning of the list is spread evenly (van der Corput's sequence)."""
    bits = max(1, (len(items) - 1).bit_length())
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(1 << bits)]
    return [items[index] for index in reversed_bits if index < len(items)]


def durations(state: State, chosen: Sequence[Gap]) -> NDArray[np.float64]:
    """Seconds on the compute queue between the uses at both ends of each absence."""
    runs, period = len(state.runs), float(state.starts[-1])
    after = np.array([gap.after for gap in chosen], np.int64)
    before = np.array([gap.before for gap in chosen], np.int64)
    turns = before // runs if runs else before
    seconds = state.starts[before % runs] + turns * period - state.starts[after + 1]
    return seconds.astype(np.float64)
