"""The estimated graphs of one model, at every batch and for every GPU, from a few traces (family.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...devices.absent_gpu.capability import Capability
from ...graphs.errors import InputError, MemplanError
from ...graphs.graph import Graph
from ...graphs.machines.gpus import Gpu
from ...graphs.machines.presets import Preset
from ...model.file import ModelFile
from ...program.program import Program
from ...updates.catalogue import OPTIMIZERS
from ...updates.choice import OptimizerChoice
from .estimate import (
    Demand,
    costs_of,
    demands_of,
    estimate_source,
    graph_from_costs,
    graph_from_demands,
    graph_on,
    traced,
)
from .estimated_pieces import EstimatedPieces
from .family import Family
from .kept_traces import KeptTraces


class Demanded:
    """Programs of one model, and what their operations demand, on GPUs that run the same operations.

    trace: makes the program at a batch.
    """

    def __init__(self, trace: Callable[[int], Program]) -> None:
        self.family = Family(trace)
        self._demands: dict[int, list[Demand]] = {}

    def demands(self, batch: int) -> list[Demand]:
        if batch not in self._demands:
            self._demands[batch] = demands_of(self.family.program(batch))
        return self._demands[batch]

    def agrees(self, batch: int) -> bool:
        traced = set(self.family.traced)
        if self.family.agrees(batch):
            return True
        # What was interpolated was wrong; what was traced stays.
        self._demands = {one: rows for one, rows in self._demands.items() if one in traced}
        return False


class Estimates:
    """The graphs of one model, estimated when they are first asked for.

    report: takes lines of progress. kept: traces on disk, None: each is made.
    """

    def __init__(
        self,
        file: ModelFile,
        optimizer: OptimizerChoice | None,
        report: Callable[[str], None],
        kept: KeptTraces | None = None,
    ) -> None:
        self._file, self._optimizer, self._report, self._kept = file, optimizer, report, kept
        self._demanded: dict[Capability, Demanded] = {}
        self._graphs: dict[tuple[int, str], tuple[list[Demand], Graph]] = {}
        self._alike: dict[tuple[int, Capability], tuple[list[Demand], Graph]] = {}

    def graph(self, batch: int, preset: Preset) -> Graph:
        """Return the graph at a batch, estimated for a preset.

        Raises MemplanError, one line, if the model can't have it.
        """
        demanded, key = self.demanded(preset), (batch, preset.name)
        demands = demanded.demands(batch)
        # Another object: the line was given up since, and the old demands with it.
        if key not in self._graphs or self._graphs[key][0] is not demands:
            program = demanded.family.program(batch)
            like = batch, Capability(*preset.gpu.capability).like
            known = self._alike.get(like)
            if known is not None and known[0] is demands:
                made = graph_on(known[1], preset, program, demands)
            else:
                made = graph_from_demands(self._file, preset, program, demands, self._optimizer)
            self._graphs[key] = self._alike[batch, Capability(*preset.gpu.capability).like] = (
                demands,
                made,
            )
        return self._graphs[key][1]

    def in_pieces(self, batch: int, preset: Preset, goals: Sequence[int]) -> Iterator[Graph]:
        """Yield graphs with regions in pieces, each with a smaller largest operation than the one before.

        goals: bytes for the largest operation, the largest first.
        """
        program, demands = self.program(batch, preset), self.demanded(preset).demands(batch)
        costs = costs_of(program, demands, preset.gpu, preset.machine.updates)
        for found in EstimatedPieces(program, costs, preset.gpu).within(goals):
            split, own = found.split.program, found.costs
            yield graph_from_costs(self._file, preset, split, demands, costs=own, optimizer=self._optimizer)

    def program(self, batch: int, preset: Preset) -> Program:
        """Return the program at a batch, traced or interpolated."""
        return self.demanded(preset).family.program(batch)

    @property
    def foreach_copies(self) -> int:
        """Number of copies of the weights that a step of the optimizer's defaults holds."""
        return 0 if self._optimizer is None else OPTIMIZERS[self._optimizer.name].foreach_copies

    def demanded(self, preset: Preset) -> Demanded:
        """Return what is known of the GPUs that run the same operations as the preset's."""
        capability = Capability(*preset.gpu.capability)
        if capability.like not in self._demanded:
            self._demanded[capability.like] = Demanded(lambda batch: self._trace(batch, preset.gpu))
        return self._demanded[capability.like]

    def at_worst(self, batch: int, preset: Preset) -> Graph:
        """Return the graph with the largest workspaces that its operations may take."""
        graph, demands = self.graph(batch, preset), self.demanded(preset).demands(batch)
        most = np.array([one.workspace.most for one in demands], np.int64)
        made = replace(graph, operations=replace(graph.operations, workspace=most))
        return made.share_structure(graph)

    def notes(self, preset: Preset) -> list[str]:
        """Return a line for each dtype that the model computes with and the GPU has no fast path for."""
        for (_batch, name), (demands, _graph) in self._graphs.items():
            if name == preset.name:
                return list(estimate_source(preset.gpu, (one.work for one in demands)).get("notes", ()))
        return []

    def agrees(self, batch: int, preset: Preset) -> bool:
        """Tell whether a trace at this batch gives what was interpolated.

        If not, all that was interpolated is forgotten, and each batch is traced from now on.
        """
        return self.demanded(preset).agrees(batch)

    def _trace(self, batch: int, gpu: Gpu) -> Program:
        def trace() -> Program:
            self._report(f"batch {batch:,}: tracing for compute capability {Capability(*gpu.capability)}")
            return traced(self._file, batch, self._optimizer, gpu)

        try:
            return trace() if self._kept is None else self._kept.program(trace, batch, gpu.capability)
        except MemplanError as error:
            raise InputError(f"batch {batch:,}: {error}") from error
