"""Rounding of fractions to whole tensors: Algorithm 8 of the thesis (4.6), for one group of tensors.

Steps are counted from the one in which all tensors are on the device. In each, tensors are chosen by SELECT
(subset_sum.py) so that at least as much has left, and is gone, as the program wants, and at most as much
comes back. As what leaves in a step is there until its end (4.7 read strictly), the deletes of a step choose
among what left in earlier ones. O(steps) subset-sum problems.

If a group has few tensors the rounding is coarse, and its errors add up over identical groups. So
`Rounding` first moves each group's wish to a subset's size and hands the difference on to the next group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .subset_sum import nearest, select

LITTLE = 1e-6
"""The share of a group that is rounding noise of the program's answer."""


class OffloadSteps(NamedTuple):
    """An offload interval of item `item`.

    It is copied out in step `out` (or an earlier one; -1: there is a copy from the start), not on the device
    from step `gone` on, and copied back in step `back`, needed in the next.
    """

    item: int
    out: int
    gone: int
    back: int


def intervals(
    sizes: Sequence[int], stored: Sequence[float], left: Sequence[float] | None
) -> list[OffloadSteps]:
    """Return the offload intervals of whole tensors that follow the program's bytes.

    stored: per step from 0, the bytes wanted on the device. left: per step, the bytes copied out before it
    (None: all are, always). After the last step all tensors are needed once more.
    """
    total, steps = sum(sizes), len(stored)
    noise = LITTLE * total
    alive = set(range(len(sizes)))
    out = dict.fromkeys(alive, -1) if left is None else dict[int, int]()
    gone: dict[int, int] = {}
    found: list[OffloadSteps] = []

    def size(items: set[int]) -> int:
        return sum(sizes[i] for i in items)

    for step in range(steps + 1):
        wanted = stored[step] if step < steps else float(total)
        if wanted < size(alive) - noise:
            # Only what has been copied out in an earlier step can go.
            for item in _select(sizes, alive & out.keys(), size(alive) - wanted - noise):
                alive.remove(item)
                gone[item] = step
        elif wanted > size(alive) + noise:
            offloaded = set(range(len(sizes))) - alive
            kept = _select(sizes, offloaded, size(offloaded) - wanted + size(alive) - noise)
            for item in offloaded - kept:
                alive.add(item)
                found.append(OffloadSteps(item, out[item], gone.pop(item), step - 1))
        if left is not None and step + 1 < steps and left[step + 1] > size(set(out)) + noise:
            there = set(range(len(sizes))) - out.keys()
            for item in _select(sizes, there, left[step + 1] - size(set(out)) - noise):
                out[item] = step
    return found


def _select(sizes: Sequence[int], items: set[int], target: float) -> set[int]:
    listed = sorted(items)
    return {listed[i] for i in select([sizes[i] for i in listed], target)}


@dataclass
class Rounding:
    """Rounding to subsets, with the error carried from group to group.

    carry: per key, the bytes that groups before this wanted to offload beyond what they got.
    """

    carry: dict[object, float] = field(default_factory=lambda: defaultdict[object, float](float))

    def share(self, key: object, sizes: Sequence[int], wanted: float) -> list[int]:
        """Choose items of about `wanted` bytes plus the carry, and carry the difference on."""
        total = sum(sizes)
        target = min(max(wanted + self.carry[key], 0.0), float(total))
        chosen = nearest(sizes, target)
        # May be below 0: then later groups offload less.
        self.carry[key] += wanted - sum(sizes[i] for i in chosen)
        return chosen

    def wish(self, key: object, sizes: Sequence[int], stored: Sequence[float]) -> list[float]:
        """Return the bytes wanted on the device from step to step of a gap, scaled to a subset's size.

        The most bytes offloaded in the gap are then the size of a subset.
        """
        total = sum(sizes)
        most = max((total - s for s in stored), default=0.0)
        if most <= LITTLE * total:
            return [float(total)] * len(stored)
        granted = sum(sizes[i] for i in self.share(key, sizes, most))
        return [total - (total - s) * granted / most for s in stored]
