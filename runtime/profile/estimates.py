"""The estimated graphs of one model, at every batch and for every GPU, from a few traces (family.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...graphs.errors import InputError, MemplanError
from ...graphs.graph import Graph
from ...graphs.machines.presets import Preset
from ..model.file import ModelFile
from ..program.program import Program
from ..updates.choice import Choice
from .estimate import Demand, demands_of, estimate_source, graph_from_demands, traced
from .family import Family


class Estimates:
    """The graphs of one model, estimated when they are first asked for.

    report: takes lines of progress.
    """

    def __init__(self, file: ModelFile, optimizer: Choice | None, report: Callable[[str], None]) -> None:
        self._file, self._optimizer, self._report = file, optimizer, report
        self.family = Family(self._trace)
        self._demands: dict[int, list[Demand]] = {}
        self._graphs: dict[tuple[int, str], Graph] = {}

    def graph(self, batch: int, preset: Preset) -> Graph:
        """Return the graph at a batch, estimated for a preset.

        Raises MemplanError, one line, if the model can't have it.
        """
        key = batch, preset.name
        if key not in self._graphs:
            program = self.family.program(batch)
            if batch not in self._demands:
                self._demands[batch] = demands_of(program)
            made = graph_from_demands(self._file, preset, program, self._demands[batch], self._optimizer)
            self._graphs[key] = made
        return self._graphs[key]

    def at_worst(self, batch: int, preset: Preset) -> Graph:
        """Return the graph with the largest workspaces that its operations may take."""
        graph = self.graph(batch, preset)
        most = np.array([one.workspace.most for one in self._demands[batch]], np.int64)
        return replace(graph, operations=replace(graph.operations, workspace=most))

    def notes(self, preset: Preset) -> list[str]:
        """Return a line for each dtype that the model computes with and the GPU has no fast path for."""
        for batch, name in self._graphs:
            if name == preset.name:
                works = (one.work for one in self._demands[batch])
                return list(estimate_source(preset.gpu, works).get("notes", ()))
        return []

    def agrees(self, batch: int) -> bool:
        """Tell whether a trace at this batch gives what was interpolated.

        If not, all that was interpolated is forgotten, and each batch is traced from now on.
        """
        if self.family.agrees(batch):
            return True
        kept = self.family.traced
        self._demands = {one: rows for one, rows in self._demands.items() if one in kept and one != batch}
        self._graphs = {key: graph for key, graph in self._graphs.items() if key[0] in self._demands}
        return False

    def _trace(self, batch: int) -> Program:
        self._report(f"batch {batch:,}: tracing")
        try:
            return traced(self._file, batch, self._optimizer)
        except MemplanError as error:
            raise InputError(f"batch {batch:,}: {error}") from error
