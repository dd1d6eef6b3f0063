"""The grouping of operations into kernels.

The operations are taken in order. Each starts as a separate group, at the end of the list, and is joined with
those before it with which it shares the most bytes. Two groups join if one can move to the other's position:
the later one up, if all it reads is made there, or the earlier one down, if nobody in between reads what it
makes. So the list is a valid order all the time, and no path leaves a group and comes back.

A group of forward has one large result: to recompute one of two would make the other too, and need what both
are made of. No group takes more memory than the largest single operation, which no plan gets around.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...graphs.graph import Phase
from .uses import Uses

MOST_MEMBERS = 64
LARGE = 1 / 8
"""Share of a group's largest result above which a result counts as another large one."""
SHARED = 1 / 5
"""Share of the bytes that the smaller group passes over which two groups must share at least to be joined."""


class Group(NamedTuple):
    """Operations that become one kernel.

    members, folded: operations in order; those folded in are of forward, and recomputed in backward.
    """

    members: tuple[int, ...]
    folded: tuple[int, ...] = ()


def grouped(uses: Uses) -> list[Group]:
    """Group all operations, and return the groups in a valid order."""
    grouping = _Grouping(uses)
    for operation in range(len(uses.program.operations)):
        grouping.add(operation)
    return [_group(uses, unit) for unit in grouping.units if unit]


def _group(uses: Uses, unit: Sequence[int]) -> Group:
    folds = (fold for member in unit for fold in uses.folds.get(member, {}).values())
    return Group(tuple(unit), tuple(sorted({x for fold in folds for x in fold.operations})))


class _Grouping:
    """The list of groups while they are joined.

    units: the list; a group that was joined to another is empty.
    place: for each operation the index of the unit that it is in.
    """

    def __init__(self, uses: Uses) -> None:
        self.units: list[list[int]] = []
        self._uses = uses
        self._place: dict[int, int] = {}
        self._touching: dict[int, set[int]] = {}
        sums = (sum(uses.traffic(i).values()) for i in range(len(uses.program.operations)))
        self._limit = max(sums, default=0)

    def add(self, operation: int) -> None:
        place = self._place[operation] = len(self.units)
        self.units.append([operation])
        if operation not in self._uses.fusible:
            return
        for x in self._uses.traffic(operation):
            self._touching.setdefault(x, set()).add(operation)
        # A joined unit may share enough with a third one.
        while (joined := self._joined(place)) is not None:
            place = joined

    def _joined(self, place: int) -> int | None:
        """Join the unit with another and return the position of both.

        Returns None if there is none to join it with.
        """
        touched = self._traffic(self.units[place])
        shared: dict[int, int] = {}
        for x, size in touched.items():
            for other in {self._place[i] for i in self._touching.get(x, ())} - {place}:
                shared[other] = shared.get(other, 0) + size
        # Most shared bytes first; of equals the later unit.
        for other in sorted(shared, key=lambda unit: (-shared[unit], -unit)):
            least = min(sum(touched.values()), sum(self._traffic(self.units[other]).values()))
            if shared[other] >= SHARED * least and self._fit(self.units[other], self.units[place]):
                low, high = sorted((other, place))
                if (target := self._target(low, high)) is not None:
                    self._move(low + high - target, target)
                    return target
        return None

    def _target(self, low: int, high: int) -> int | None:
        """Return the position at which the two units can be one; None if there is none."""
        # `later` of Uses are the operations that must run before: all are at or before `low`.
        later = (self._place[i] for i in self._around(self.units[high], self._uses.later))
        if all(unit <= low for unit in later):
            return low
        before = self._around(self.units[low], self._uses.before)
        # Operations that are not in the list yet come later in any case.
        if all(self._place.get(i, high) >= high for i in before):
            return high
        return None

    def _around(self, unit: Sequence[int], order: Sequence[set[int]]) -> set[int]:
        return set[int]().union(*(order[member] for member in unit)).difference(unit)

    def _move(self, source: int, target: int) -> None:
        # Within a unit the traced order is valid.
        self.units[target] = sorted(self.units[source] + self.units[target])
        self.units[source] = []
        self._place.update(dict.fromkeys(self.units[target], target))

    def _fit(self, one: Sequence[int], other: Sequence[int]) -> bool:
        uses, unit = self._uses, {*one, *other}
        phases = {uses.program.operations[member].phase for member in unit}
        if len(phases) > 1 or len(unit) > MOST_MEMBERS:
            return False
        results = outside(uses, unit)
        if phases == {Phase.FORWARD} and sum(x > LARGE * max(results.values()) for x in results.values()) > 1:
            return False
        inside = {x for member in unit for x in uses.program.operations[member].writes}
        inputs = {x: uses.sizes[x] for member in unit for x in uses.reads[member] - inside}
        return sum(results.values()) + sum(inputs.values()) <= self._limit

    def _traffic(self, unit: Iterable[int]) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for member in unit:
            found |= self._uses.traffic(member)
        return found


def outside(uses: Uses, unit: set[int]) -> dict[int, int]:
    """Return the storages that a group of operations makes for others, with their bytes."""
    made = (x for member in sorted(unit) for x in uses.program.operations[member].writes)
    return {
        x: uses.sizes[x] for x in made if x in uses.results or not unit.issuperset(uses.readers.get(x, ()))
    }
