"""Which copies in host memory are pinned, by the rule of planner/simulator/pinned.py, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.compiled import inner
from .instance import Instance
from .rows import COMPUTE, DELETE, DEVICE, HOST, OFFLOAD, PREFETCH

Flags = NDArray[np.bool_]
_CROSS, _MAKE, _DROP = range(3)
"""Events of a copy on the host: it crosses the link; a step makes it; it is deleted."""
_KINDS = 4
"""Number of kinds: an event is `_KINDS` · tensor + kind."""


@inner
def pins_of(instance: Instance, steps: Ints) -> tuple[Ints, Flags, Flags]:
    """Return which copies in host memory are pinned. All false if pinned memory has no limit.

    First: per step, the start of its entries in the flags. Then the flags: whether the copy on the host that
    a step makes, if any, is pinned; a run on the host has one entry for each of its writes, and what one on
    the device produces there is always pinned. Last: per tensor whether the copy at the start of an iteration
    is.
    """
    variants, tensors = instance.variants, instance.tensors
    count, length = len(tensors), len(steps)
    first, most = np.zeros(length + 1, np.int64), 2 * length
    for index in range(length):
        verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
        made = 0
        if verb == COMPUTE:
            most += variants[target].host_reads_end - variants[target].host_reads_start
            most += variants[target].host_writes_end - variants[target].host_writes_start
            if variants[target].host:
                made = (variants[target].writes_end - variants[target].writes_start) // 2
        elif verb != DELETE and where == HOST and not tensors[target].spread:
            made = 1
        first[index + 1] = first[index] + made
    flags, at_start = np.zeros(first[length], np.bool_), np.zeros(count, np.bool_)
    if instance.limits[-1] == np.inf:
        return first, flags, at_start
    events = np.empty(most + first[length], np.int64)
    events = events[: _events(variants, tensors, instance.members, steps, events)]
    will, crossed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for place in range(len(events) - 1, -1, -1):
        # Backwards: in the end `will` holds what happens first to the copy at the start.
        if events[place] % _KINDS != _MAKE:
            will[events[place] // _KINDS] = events[place] % _KINDS == _CROSS
    for event in events:
        # Forwards: what happens last, which for a persistent tensor is what came before the next start.
        if event % _KINDS != _MAKE:
            crossed[event // _KINDS] = event % _KINDS == _CROSS
    for x in range(count):
        at_start[x] = tensors[x].persistent and (will[x] or crossed[x])
        will[x] = tensors[x].persistent and will[x]
    made = first[length]
    for place in range(len(events) - 1, -1, -1):
        x, kind = events[place] // _KINDS, events[place] % _KINDS
        if kind == _MAKE:
            made -= 1
            # Pinned if it crosses a link before it is deleted; flags are filled from the back, as events are
            # read.
            flags[made] = will[x]
        else:
            will[x] = kind == _CROSS
    return first, flags, at_start


@inner
def _events(variants: Any, tensors: Any, members: Ints, steps: Ints, events: Ints) -> int:
    """Fill `events` with what happens to copies on the host, in order; their number.

    Copies of spread tensors are on the peers instead: nothing is said of them.
    """
    length = 0
    for index in range(len(steps)):
        verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
        if verb == COMPUTE:
            variant = variants[target]
            low, high, each, kind = variant.host_reads_start, variant.host_reads_end, 1, _CROSS
            if variant.host:
                low, high, each, kind = variant.writes_start, variant.writes_end, 2, _MAKE
            for place in range(low, high, each):
                if tensors[members[place]].spread:
                    continue
                events[length] = members[place] * _KINDS + kind
                length += 1
            for place in range(variant.host_writes_start, variant.host_writes_end, 2):
                events[length] = members[place] * _KINDS + _CROSS
                length += 1
            continue
        if tensors[target].spread:
            continue
        if verb == DELETE:
            if where == HOST:
                events[length] = target * _KINDS + _DROP
                length += 1
            continue
        if where == HOST:
            events[length] = target * _KINDS + _MAKE
            length += 1
        if (verb == OFFLOAD and where == HOST) or (verb == PREFETCH and where == DEVICE):
            events[length] = target * _KINDS + _CROSS
            length += 1
    return length
