"""What goes on to the disk where the host is too small: the longest absences, as few as needed.

Only absences around the end of the turn: a tensor is on the disk then and nowhere else, which is what
a schedule can say of where tensors start. The number is found by bisection on the compiled simulator.
"""

from __future__ import annotations

from ....graphs.machine import Memory
from ....planner.residence.residence import Place
from .fill import durations
from .state import State, absences

_ON_DISK = 1 << Memory.DISK


def spill(state: State, look_ahead: float = 1.0) -> None:
    """Send the fewest of the longest absences to the disk with which the host's capacity holds, if any."""
    links = state.machine.links
    state.tier.clear()
    if links.disk_read is None or links.disk_write is None or not state.evaluate(look_ahead).excess:
        return
    candidates = _longest(state)
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        _set(state, candidates, middle)
        low, high = (low, middle) if not state.evaluate(look_ahead).excess else (middle + 1, high)
    _set(state, candidates, low)


def _longest(state: State) -> list[Place]:
    runs = len(state.runs)
    around = [
        absence for absence in absences(state) if absence.before >= runs and state.lives[absence.life].cyclic
    ]
    around = [absence for absence in around if (absence.tensor, absence.after) in state.away]
    seconds = durations(state, around) if around else ()
    ordered = sorted(zip(seconds, around, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [(absence.tensor, absence.after) for _seconds, absence in ordered]


def _set(state: State, candidates: list[Place], count: int) -> None:
    """The first so many on the disk, the others on the host."""
    state.tier = dict.fromkeys(candidates[:count], Memory.DISK)
    state.send(candidates)
    elsewhere = [where for where in state.tier if state.starts_on(where[0]) != _ON_DISK]
    for where in elsewhere:
        del state.tier[where]
    state.send(elsewhere)
