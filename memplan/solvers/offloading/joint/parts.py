"""The contribution of one tensor to a state: transfers and deletes, bytes by moment, and offload intervals.

Intervals depend on the modes of the runs that access it, the rest also on what is decided for its uses: they
are cached by these. equivalent.py derives the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.residency.lifetimes import Lifetime, count_moments, position_of, run_moment, tensor_lifetimes
from ....planner.residency.residency import Residency, TensorUse
from ....planner.schedule.sequence import Run
from ....planner.simulator.footprint import Footprint
from .equivalent import MOST_KEPT, Equivalent, Part, Short, shorten
from .timeline import Lineup

INTERVAL = np.dtype([(name, np.int64) for name in ("tensor", "after", "before")])


class OffloadInterval(NamedTuple):
    """An offload interval of a tensor, between two uses on the device.

    before: beyond the runs' number for a use in the next iteration; the number itself for the iteration's
    end.
    """

    tensor: int
    after: int
    before: int

    @property
    def place(self) -> TensorUse:
        return self.tensor, self.after


class Decisions(NamedTuple):
    """Decisions by the tensor and the position of a use.

    offloaded: the memory in which the tensor is after it. leave: before which run the copy down is, if not at
    once.
    shift, read_shift: number of slots by which the fetch for it, and the read from the disk before that, come
    later than look-ahead and order of need say.
    """

    offloaded: dict[TensorUse, int]
    leave: dict[TensorUse, int]
    shift: dict[TensorUse, int]
    read_shift: dict[TensorUse, int]

    def copy(self) -> Decisions:
        return Decisions(dict(self.offloaded), dict(self.leave), dict(self.shift), dict(self.read_shift))


class IntervalParts:
    """The contributions of all tensors for one sequence of runs, in any variants."""

    def __init__(self, graph: Graph, machine: Machine, lineup: Lineup) -> None:
        self.graph, self.machine, self.lineup = graph, machine, lineup
        self.moments = count_moments(len(lineup.runs))
        self._equivalent = Equivalent(Footprint(graph, machine.hierarchy), machine.hierarchy, self.moments)
        self._kept: dict[tuple[Any, ...], Part] = {}
        self._lives: dict[tuple[Any, ...], tuple[list[Lifetime], Short]] = {}
        self._gaps: dict[tuple[Any, ...], Any] = {}
        self._places = {
            x: [(x, position) for position in positions] or [(x, -1)]
            for x, positions in lineup.touched.items()
        }
        self._modes: dict[int, Callable[[Sequence[Run]], Any]] = {
            x: itemgetter(*positions) if positions else _none for x, positions in lineup.touched.items()
        }

    def of(self, x: int, decided: Decisions) -> Part:
        """Return the contribution of tensor x; only the decisions about this tensor matter."""
        places = self._places[x]
        # Tables are empty most of the time: None is a shorter key than a tuple of Nones.
        wishes = [tuple(map(table.get, places)) if table else None for table in decided]
        key = (x, self._modes[x](self.lineup.runs), *wishes)
        part = self._kept.get(key)
        if part is None:
            part = self._make(x, decided)
            _keep(self._kept, key, part)
        return part

    def intervals(self, x: int) -> Any:
        """Return the offload intervals of tensor x, rows INTERVAL, whatever is decided."""
        key = (x, self._modes[x](self.lineup.runs))
        rows = self._gaps.get(key)
        if rows is None:
            found = [interval for lifetime in self._lifetimes(x)[0] for interval in self._intervals(lifetime)]
            rows = np.array(found, INTERVAL)
            _keep(self._gaps, key, rows)
        return rows

    def _lifetimes(self, x: int) -> tuple[list[Lifetime], Short]:
        """Return the lifetimes of tensor x, and the same on a shorter line."""
        key = (x, self._modes[x](self.lineup.runs))
        if (known := self._lives.get(key)) is not None:
            return known
        touches = [(run_moment(position), touch) for position, touch in self.lineup.present(x)]
        lifetimes = tensor_lifetimes(self.graph, x, touches)[::-1]
        found = lifetimes, shorten(lifetimes, len(self.lineup.runs))
        _keep(self._lives, key, found)
        return found

    def _make(self, x: int, decided: Decisions) -> Part:
        lifetimes, short = self._lifetimes(x)
        slots = {place: decided.leave[place] for place in self._places[x] if place in decided.leave}
        if slots:
            residency = Residency(self.lineup.runs, decided.offloaded, slots)
            part = self._equivalent.part_at(x, residency, lifetimes)
        else:
            part = self._equivalent.part(x, short, decided.offloaded)
        for fetch in part.fetches if decided.shift or decided.read_shift else ():
            place = x, position_of(fetch["use"])
            shifts = decided.shift.get(place, 0), decided.read_shift.get(place, 0)
            fetch["shift"][: len(shifts)] = shifts  # reads to deeper memories are not shifted
        return part

    def _intervals(self, lifetime: Lifetime) -> list[OffloadInterval]:
        # Inputs: they are there from the start, and no schedule may delete them.
        fixed = self.graph.resident[lifetime.tensor] and not lifetime.persistent
        if fixed:
            return []
        runs, uses = len(self.lineup.runs), lifetime.device_uses
        # An activation can leave from the moment at which it is complete.
        complete = next((i for i, use in enumerate(uses) if use.changes), 0) if not lifetime.persistent else 0
        positions = [position_of(use.moment) for use in uses[complete:]]
        following = positions[1:]
        if lifetime.persistent:
            # Around the end, to the first use of the next iteration.
            following += [position + runs for position in positions[:1]]
        elif lifetime.survives:
            following += [runs]
        pairs = zip(positions, following, strict=False)
        return [
            OffloadInterval(lifetime.tensor, after, before) for after, before in pairs if before > after + 1
        ]


def _none(_runs: Sequence[Run]) -> tuple[()]:
    return ()


def _keep(table: dict[tuple[Any, ...], Any], key: tuple[Any, ...], value: Any) -> None:
    if len(table) == MOST_KEPT:
        table.clear()
    table[key] = value
