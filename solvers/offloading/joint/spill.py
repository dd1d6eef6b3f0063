"""What goes on to the disk where the host is too small: the longest absences, as few as needed.

Absences of activations, and those of weights and states around the end of the turn: these are on the disk
then and nowhere else, which is what a schedule can say of where tensors start. The number is found by
bisection on the compiled simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.machine import Memory
from ....planner.residency.residency import TensorUse
from ....planner.simulator.pinned import PINNED
from .fill import durations
from .state import State

_ON_DISK = 1 << Memory.DISK


def spill(state: State, look_ahead: float = 1.0) -> None:
    """Send the fewest of the longest absences to the disk with which the host's capacity holds, if any."""
    if not has_disk(state) or not _host_excess(state, look_ahead):
        return
    candidates = _longest(state)
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        _set(state, candidates, middle)
        low, high = (low, middle) if not _host_excess(state, look_ahead) else (middle + 1, high)
    _set(state, candidates, low)


def has_disk(state: State) -> bool:
    return state.machine.links.disk_read is not None and state.machine.links.disk_write is not None


def may_lie_on_disk(state: State, tensor: int) -> bool:
    """As it is: a persistent tensor on the disk lies nowhere else when a turn starts."""
    return not state.cyclic[tensor] or state.starts_on(tensor) == _ON_DISK


def _host_excess(state: State, look_ahead: float) -> bool:
    """More lies on the host than it holds, or than can be pinned."""
    ledgers = [Memory.HOST, PINNED]
    return bool((state.peaks(look_ahead)[ledgers] > state.instance.limits[ledgers]).any())


def _longest(state: State) -> list[TensorUse]:
    runs = len(state.runs)
    chosen = [
        each
        for each in state.absences
        if each.place in state.away and (each.before >= runs or not state.cyclic[each.tensor])
    ]
    seconds = durations(state, chosen) if chosen else ()
    ordered = sorted(zip(seconds, chosen, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [absence.place for _seconds, absence in ordered]


def _set(state: State, candidates: Sequence[TensorUse], count: int) -> None:
    """The first so many on the disk, the others on the host."""
    state.send(candidates[:count], Memory.DISK)
    state.send(candidates[count:])
    state.send([where for where in candidates[:count] if not may_lie_on_disk(state, where[0])])
