"""A graph while it is being put together, one tensor and one operation at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .adjacency import Adjacency
from .graph import Graph, Kind, Mode, Operations, Phase, Tensors
from .machine import Machine


class Draft:
    """A graph under construction: add tensors and operations in traced order, then take the `graph()`.

    The graph is as good as what was put in: call graphs.validate.validate if that is in doubt.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tensors: list[tuple[str, int, Kind, str | None]] = []
        self._spread: set[int] = set()
        self._comm: set[int] = set()
        self._names: list[str] = []
        self._phases: list[Phase] = []
        self._times: list[float] = []
        self._launches: list[float] = []
        self._workspaces: list[int] = []
        self._edges: tuple[list[Sequence[int]], ...] = ([], [], [])
        self._flags: list[tuple[bool, bool]] = []
        self._layers: list[str | None] = []
        self._modes: dict[int, tuple[Mode, ...]] = {}

    def tensor(
        self,
        name: str,
        size_bytes: int,
        kind: Kind = Kind.ACTIVATION,
        layer: str | None = None,
        *,
        spread: bool = False,
    ) -> int:
        """Add a tensor and return its index. spread: over the ranks of sharded training."""
        if spread:
            self._spread.add(len(self._tensors))
        self._tensors.append((name, size_bytes, kind, layer))
        return len(self._tensors) - 1

    def size_of(self, tensor: int) -> int:
        return self._tensors[tensor][1]

    def operation(
        self,
        name: str,
        *,
        time: float,
        reads: Sequence[int] = (),
        writes: Sequence[int] = (),
        mutates: Sequence[int] = (),
        phase: Phase = Phase.FORWARD,
        workspace: int = 0,
        recompute: bool = True,
        random: bool = False,
        layer: str | None = None,
        modes: Sequence[Mode] = (),
        launch: float = 0.0,
        on_comm: bool = False,
    ) -> int:
        """Add an operation and return its index.

        Times in seconds, workspace in bytes, edges as tensor indices. on_comm: it is of the queue comm.
        """
        if on_comm:
            self._comm.add(len(self._names))
        self._names.append(name)
        self._phases.append(phase)
        self._times.append(time)
        self._launches.append(launch)
        self._workspaces.append(workspace)
        for column, edges in zip(self._edges, (reads, writes, mutates), strict=True):
            column.append(edges)
        self._flags.append((recompute, random))
        self._layers.append(layer)
        if modes:
            self._modes[len(self._names) - 1] = tuple(modes)
        return len(self._names) - 1

    def graph(
        self,
        results: Sequence[int] = (),
        machine: Machine | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Graph:
        # Without tensors zip has no columns to unpack.
        names, sizes, kinds, layers = zip(*self._tensors, strict=True) if self._tensors else ((),) * 4
        flags = np.array(self._flags, np.bool_).reshape(-1, 2)  # without operations the array has one axis
        reads, writes, mutates = (Adjacency.of(column) for column in self._edges)
        return Graph(
            name=self.name,
            tensors=Tensors(
                names,
                np.array(sizes, np.int64),
                np.array(kinds, np.uint8),
                layers,
                frozenset(self._spread),
            ),
            operations=Operations(
                name=self._names,
                phase=np.array(self._phases, np.uint8),
                time=np.array(self._times, np.float64),
                workspace=np.array(self._workspaces, np.int64),
                reads=reads,
                writes=writes,
                mutates=mutates,
                recompute=flags[:, 0],
                random=flags[:, 1],
                layer=self._layers,
                modes=self._modes,
                launch=np.array(self._launches, np.float64),
                comm=frozenset(self._comm),
            ),
            results=list(results),
            machine=machine,
            source=source or {},
        )
