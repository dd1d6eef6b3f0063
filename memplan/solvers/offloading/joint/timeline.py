"""The runs of a state, in order: which take place, when each starts, and what each touches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....planner.replay.instance import VariantTable
from ....planner.residency.lifetimes import Access, find_accesses
from ....planner.schedule.sequence import Run

ABSENT = -1
"""The mode of a run that could take place, and does not."""


class Lineup:
    """The runs of a state, in order, with their times and accesses.

    runs: with modes, ABSENT ones among them. variants: per run the number of its execution variant; ABSENT
    likewise.
    touched: per tensor that takes part the runs, ABSENT ones too, that touch it in some variant.
    """

    def __init__(self, graph: Graph, numbers: VariantTable, runs: Sequence[Run]) -> None:
        self.graph, self._numbers = graph, numbers
        self._known: dict[Run, dict[int, Access]] = {}
        self.read(runs)
        self.touched = self._positions()

    def read(self, runs: Sequence[Run]) -> None:
        """Take the same operations in other variants."""
        self.runs = list(runs)
        self.variants = np.array([self._variant(run) for run in runs], np.int64)
        self._durations = np.array([self._seconds(run) for run in runs], np.float64)
        self._starts, self._before = np.zeros(len(runs) + 1), np.zeros(len(runs) + 1, np.int64)
        self._counted = False

    def put(self, position: int, mode: int) -> Iterable[int]:
        """Change the variant of the run at a position, and return what the operation touches."""
        run = self.runs[position][0], mode
        self.runs[position] = run
        self.variants[position], self._durations[position] = self._variant(run), self._seconds(run)
        self._counted = False
        return self._touches((run[0], 0)).keys()

    @property
    def starts(self) -> Floats:
        """Return when each run would start on the compute queue without waiting, and when the last would
        end."""
        self._count()
        return self._starts

    @property
    def before(self) -> NDArray[np.int64]:
        """Return the number of runs that take place before each, and in all."""
        self._count()
        return self._before

    def present(self, tensor: int) -> list[tuple[int, Access]]:
        """Return the runs that touch a tensor, by position, with their accesses."""
        found: list[tuple[int, Access]] = []
        for position in self.touched.get(tensor, ()):
            run = self.runs[position]
            touch = self._touches(run).get(tensor) if run[1] != ABSENT else None
            if touch is not None:
                found.append((position, touch))
        return found

    def on_device(self, position: int) -> bool:
        """Tell whether the run takes place, on the device."""
        return self._on_device(self.runs[position])

    def workspace(self, position: int) -> int:
        """Return the bytes of a run's workspace on the device."""
        run = self.runs[position]
        return self.graph.workspace(*run) if self._on_device(run) else 0

    def _count(self) -> None:
        if not self._counted:
            np.cumsum(self._durations, out=self._starts[1:])
            np.cumsum(self.variants != ABSENT, out=self._before[1:])
            self._counted = True

    def _positions(self) -> dict[int, list[int]]:
        graph = self.graph
        moving = graph.tensors.bytes > 0
        moving[_read_on_host(graph)] = True  # without bytes they have to be there too
        there = moving & graph.resident
        there[[x for x in graph.results if moving[x]]] = True
        touched: dict[int, list[int]] = {x: [] for x in np.flatnonzero(there).tolist()}
        for position, (operation, _mode) in enumerate(self.runs):
            for x in self._touches((operation, 0)):
                if moving[x]:
                    touched.setdefault(x, []).append(position)
        return touched

    def _touches(self, run: Run) -> dict[int, Access]:
        if run not in self._known:
            self._known[run] = find_accesses(self.graph, *run)
        return self._known[run]

    def _variant(self, run: Run) -> int:
        return ABSENT if run[1] == ABSENT else self._numbers.number[run]

    def _on_device(self, run: Run) -> bool:
        return _takes_place_on_device(self.graph, run)

    def _seconds(self, run: Run) -> float:
        return compute_seconds(self.graph, run)


def compute_seconds(graph: Graph, run: Run) -> float:
    """Return the seconds of a run on the compute queue: 0 if it is absent, on the host, or a collective."""
    computes = _takes_place_on_device(graph, run) and run[0] not in graph.operations.comm
    return graph.seconds(*run) if computes else 0.0


def _takes_place_on_device(graph: Graph, run: Run) -> bool:
    operation, mode = run
    return mode == 0 or (mode > 0 and not graph.operations.modes[operation][mode - 1].on_host)


def _read_on_host(graph: Graph) -> list[int]:
    """Return what some variant reads, changes or writes in host memory, and what is spread over ranks."""
    found: list[int] = [*graph.tensors.spread]
    for operation, modes in graph.operations.modes.items():
        for mode in modes:
            inputs = graph.input_lists[operation]
            found += [*(inputs if mode.on_host else mode.reads_host), *mode.made_on_host]
    return found
