"""Spill of tensors to a deeper memory if one is too small: the longest offload intervals, as few as needed.

Memory by memory from the host down. Intervals of activations, and those of weights and states around the end
of the iteration: these are in the deeper memory then and nowhere else, which is where tensors may start. The
number is found by bisection on the compiled simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graphs.machine import MOST_MEMORIES, Memory
from ....planner.residency.residency import TensorUse
from ....planner.simulator.pinned import PINNED
from .fill import durations
from .state import State


def spill(state: State, look_ahead: float = 1.0) -> None:
    """Send the fewest of the longest intervals deeper with which each memory's capacity holds, if any."""
    for memory, below in enumerate(state.machine.hierarchy.tiers[Memory.DISK :], Memory.HOST):
        if below.read is None or below.write is None:
            return
        if _is_exceeded(state, memory, look_ahead):
            _spill_from(state, memory, look_ahead)


def _spill_from(state: State, memory: int, look_ahead: float) -> None:
    candidates = _longest(state, memory)
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        _set(state, candidates, middle, memory)
        exceeded = _is_exceeded(state, memory, look_ahead)
        # The more intervals go deeper, the less lies in this memory.
        low, high = (middle + 1, high) if exceeded else (low, middle)
    _set(state, candidates, low, memory)


def has_disk(state: State) -> bool:
    return state.machine.links.disk_read is not None and state.machine.links.disk_write is not None


def may_lie_below(state: State, tensor: int) -> bool:
    """Tell whether a tensor may be below the host as decided: a persistent one must start there and nowhere
    else."""
    starts = state.starts_on(tensor)
    # `starts` is a set of memories as bits: just one, and that from the disk down.
    return not state.cyclic[tensor] or (starts >= 1 << Memory.DISK and starts & (starts - 1) == 0)


def _is_exceeded(state: State, memory: int, look_ahead: float) -> bool:
    """Tell whether a memory holds more than its capacity, or the host more than can be pinned."""
    ledgers = [memory, PINNED] if memory == Memory.HOST else [memory]
    return bool((state.peaks(look_ahead)[ledgers] > state.instance.limits[ledgers]).any())


def _longest(state: State, memory: int) -> list[TensorUse]:
    """Return the intervals, longest first, whose tensor is in a memory or above it and may go deeper."""
    runs = len(state.runs)
    chosen = [
        each
        for each in state.intervals
        if state.offloaded.get(each.place, Memory.DEVICE) in _ends(memory)
        # Positions from `runs` on are of the next iteration: the interval spans the end.
        and (each.before >= runs or not state.cyclic[each.tensor])
        and each.tensor not in state.graph.tensors.spread
    ]
    seconds = durations(state, chosen) if chosen else ()
    ordered = sorted(zip(seconds, chosen, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [interval.place for _seconds, interval in ordered]


def _ends(memory: int) -> range:
    """Return the memories whose tensors may be sent deeper: on the host all offloaded ones, to choose
    anew."""
    return range(memory, MOST_MEMORIES if memory == Memory.HOST else memory + 1)


def _set(state: State, candidates: Sequence[TensorUse], count: int, memory: int) -> None:
    """Send the first `count` candidates below a memory, and the others to it."""
    state.send(candidates[:count], memory + 1)
    state.send(candidates[count:], memory)
    # Last: where a persistent tensor starts depends on all of its intervals.
    state.send([where for where in candidates[:count] if not may_lie_below(state, where[0])], memory)
