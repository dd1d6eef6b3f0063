"""Which copies in host memory are pinned, by the rule of planner/simulator/pinned.py, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graphs.arrays import Ints
from ...graphs.compiled import compiled
from ..simulator.pinned import PINNED
from .instance import Instance

Flags = NDArray[np.bool_]
_PINNED = PINNED


@compiled
def pins_of(instance: Instance, steps: Ints) -> tuple[Ints, Flags, Flags]:
    """Per step where its copies stand in the flags behind it: whether the copy on the host that it makes, if
    any, is pinned; a run on the host has one for each of its writes. Then per tensor whether the
    copy is that is there when a turn starts. All false where pinned memory has no limit."""
    ways, members, tensors = instance.ways, instance.members, instance.tensors
    count, length = len(tensors), len(steps)
    first = np.zeros(length + 1, np.int64)
    for index in range(length):
        verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
        made = 0
        if verb == 0 and ways[target].host:
            made = (ways[target].writes_end - ways[target].writes_start) // 2
        elif verb > 1 and where == 1:
            made = 1
        first[index + 1] = first[index] + made
    flags, at_start = np.zeros(first[length], np.bool_), np.zeros(count, np.bool_)
    if np.isinf(instance.limits[_PINNED]):
        return first, flags, at_start
    will, crossed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    for index in range(length - 1, -1, -1):
        _before(instance, steps, index, will)
    for index in range(length):
        _behind(instance, steps, index, crossed)
    for x in range(count):
        at_start[x] = tensors[x].persistent and (will[x] or crossed[x])
        will[x] = tensors[x].persistent and will[x]
    for index in range(length - 1, -1, -1):
        verb, target = steps[index, 0], steps[index, 1]
        if verb > 1:
            _before(instance, steps, index, will)
        for place in range(first[index], first[index + 1]):
            x = target if verb > 1 else members[ways[target].writes_start + 2 * (place - first[index])]
            flags[place] = will[x]
        if verb <= 1:
            _before(instance, steps, index, will)
    return first, flags, at_start


@compiled
def _before(instance: Instance, steps: Ints, index: int, will: Flags) -> None:
    """Whether copies that are there before a step will cross the link, from whether those behind it will."""
    verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
    if verb == 1 and where == 1:
        will[target] = False
    else:
        _behind(instance, steps, index, will)


@compiled
def _behind(instance: Instance, steps: Ints, index: int, crossed: Flags) -> None:
    """Note what crosses in a step; a copy that it deletes has crossed for nothing."""
    verb, target, where = steps[index, 0], steps[index, 1], steps[index, 2]
    if verb == 0:
        way = instance.ways[target]
        if not way.host:
            for place in range(way.host_reads_start, way.host_reads_end):
                crossed[instance.members[place]] = True
    elif verb == 1:
        if where == 1:
            crossed[target] = False
    elif (verb == 2 and where == 1) or (verb == 3 and where == 0):
        crossed[target] = True
