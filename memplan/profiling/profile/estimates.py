"""The estimated graphs of one model, at every batch and for every GPU, from a few traces (family.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ...devices.absent_gpu.capability import Capability
from ...devices.absent_gpu.questions import all_kinds
from ...graphs.errors import InputError, MemplanError
from ...graphs.graph import Graph
from ...graphs.machines.gpus import Gpu
from ...graphs.machines.presets import Preset
from ...model.file import ModelFile
from ...program.program import Program
from ...updates.catalogue import OPTIMIZERS
from ...updates.choice import OptimizerChoice
from .demand_lines import DemandLine
from .estimate import (
    Demand,
    Traced,
    costs_of,
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

    trace: makes the program at a batch, for a GPU of one capability.
    kinds: the capabilities whose GPUs run the same, by all traces so far.
    """

    def __init__(
        self, trace: Callable[[int], Traced], kinds: frozenset[Capability], known: Mapping[int, Program]
    ) -> None:
        self.kinds = kinds
        self.family = Family(partial(self._traced, trace), dict(known))
        self._demands: dict[int, list[Demand]] = {}
        self._lines: dict[tuple[int, int], DemandLine] = {}

    def _traced(self, trace: Callable[[int], Traced], batch: int) -> Program:
        found = trace(batch)
        self.kinds &= found.kinds
        return found.program

    def line(self, batch: int) -> DemandLine:
        """Return the line of programs that a batch is on. Raises MemplanError if the model can't have it."""
        low, high = ends = self.family.line(batch)
        if ends not in self._lines:
            traced = self.family.traced
            self._lines[ends] = DemandLine(ends, traced[low], traced[high])
        return self._lines[ends]

    def demands(self, batch: int) -> list[Demand]:
        """Return the demand of each operation. Raises MemplanError if the model can't have the batch."""
        if batch not in self._demands:
            line = self.line(batch)
            by_kind = line.demands(batch)
            self._demands[batch] = [by_kind[kind] for kind in line.kind.tolist()]
        return self._demands[batch]

    def agrees(self, batch: int) -> bool:
        traced = set(self.family.traced)
        if self.family.agrees(batch):
            return True
        self._lines.clear()
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
        self._demanded: list[Demanded] = []
        self._traces: dict[int, list[Traced]] = {}
        self._graphs: dict[tuple[int, str], tuple[list[Demand], Graph]] = {}
        self._alike: dict[tuple[int, Demanded], tuple[list[Demand], Graph]] = {}

    def graph(self, batch: int, preset: Preset) -> Graph:
        """Return the graph at a batch, estimated for a preset.

        Raises MemplanError, one line, if the model can't have it.
        """
        demanded, key = self.demanded(preset, batch), (batch, preset.name)
        demands = demanded.demands(batch)
        # Another object: the line was given up since, and the old demands with it.
        if key not in self._graphs or self._graphs[key][0] is not demands:
            program = demanded.family.program(batch)
            known = self._alike.get((batch, demanded))
            if known is not None and known[0] is demands:
                made = graph_on(known[1], preset, program, demands)
            else:
                made = graph_from_demands(self._file, preset, program, demands, self._optimizer)
            self._graphs[key] = self._alike[batch, demanded] = demands, made
        return self._graphs[key][1]

    def in_pieces(self, batch: int, preset: Preset, goals: Sequence[int]) -> Iterator[Graph]:
        """Yield graphs with regions in pieces, each with a smaller largest operation than the one before.

        goals: bytes for the largest operation, the largest first.
        """
        demanded = self.demanded(preset, batch)
        program, demands = demanded.family.program(batch), demanded.demands(batch)
        costs = costs_of(program, demands, preset.gpu, preset.machine.updates)
        for found in EstimatedPieces(program, costs, preset.gpu).within(goals):
            split, own = found.split.program, found.costs
            yield graph_from_costs(self._file, preset, split, demands, costs=own, optimizer=self._optimizer)

    def program(self, batch: int, preset: Preset) -> Program:
        """Return the program at a batch, traced or interpolated."""
        return self.demanded(preset, batch).family.program(batch)

    @property
    def foreach_copies(self) -> int:
        """Number of copies of the weights that a step of the optimizer's defaults holds."""
        return 0 if self._optimizer is None else OPTIMIZERS[self._optimizer.name].foreach_copies

    def demanded(self, preset: Preset, batch: int | None = None) -> Demanded:
        """Return what is known of the GPUs that run the same operations as the preset's.

        batch: one that is known there then, None: no one. Raises MemplanError if the model can't have it.
        """
        while True:
            found = self._of_kind(preset.gpu)
            if batch is None:
                return found
            found.line(batch)
            if self._of_kind(preset.gpu) is found:  # a trace may show that this GPU runs others
                return found

    def _of_kind(self, gpu: Gpu) -> Demanded:
        kind = Capability(*gpu.capability).like
        found = next((one for one in self._demanded if kind in one.kinds), None)
        if found is None:
            # What was traced for others and holds for this kind is traced no second time.
            known = {batch: one for batch in self._traces if (one := self._known_trace(batch, kind))}
            kinds = frozenset.intersection(all_kinds() | {kind}, *(one.kinds for one in known.values()))
            programs = {batch: one.program for batch, one in known.items()}
            found = Demanded(partial(self._trace, gpu), kinds, programs)
            self._demanded.append(found)
        return found

    def _known_trace(self, batch: int, kind: Capability) -> Traced | None:
        return next((one for one in self._traces.get(batch, ()) if kind in one.kinds), None)

    def at_worst(self, batch: int, preset: Preset) -> Graph:
        """Return the graph with the largest workspaces that its operations may take."""
        graph, demands = self.graph(batch, preset), self.demanded(preset, batch).demands(batch)
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

    def _trace(self, gpu: Gpu, batch: int) -> Traced:
        kind = Capability(*gpu.capability).like

        def trace() -> Traced:
            self._report(f"batch {batch:,}: tracing for compute capability {Capability(*gpu.capability)}")
            return traced(self._file, batch, self._optimizer, gpu)

        if (found := self._known_trace(batch, kind)) is None:
            try:
                found = trace() if self._kept is None else self._kept.trace(trace, batch, kind)
            except MemplanError as error:
                raise InputError(f"batch {batch:,}: {error}") from error
            self._traces.setdefault(batch, []).append(found)
        return found
