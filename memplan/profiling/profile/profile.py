"""`plan profile`: a model traced, each of its operations measured, and one iteration compared with eager.

Each distinct call (operation, shapes, strides, dtypes, other arguments) is measured by itself, on synthetic
inputs, so that measuring takes far less memory than the iteration, and seconds if that takes seconds: a GPT-2
of 6 layers has 499 operations of which 88 are distinct. Only the comparison needs the memory of eager
PyTorch; if there is not that much, the graph says that it was not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ...devices.device.choice import check_device, device_of
from ...devices.measuring.live_bytes import check_profiler
from ...devices.measuring.measure import Measurement
from ...graphs.graph import Graph
from ...model.file import ModelFile, load_model_file
from ...model.iteration import Iteration, on_device
from ...planner.baseline import baseline, whole_document
from ...planner.budget import Budget
from ...program.graph import Cost, graph_of
from ...program.program import Operation, Program
from ...tracing.output_layouts import residents, trace_real_layouts
from ...updates.buckets import buckets_of
from ...updates.choice import OptimizerChoice, updated
from ...updates.early import updates_early, with_undo
from ..compare.accuracy import accuracy
from ..compare.verdict import verdict
from ..fusion.choice import COMPILED, chosen
from ..splitting.choice import Choice
from ..splitting.exact import Exactness
from ..splitting.split import Split
from .against_eager import Check, check_against_eager, doubt_line
from .pieces import measured_pieces
from .rounds import Progress, Rounds, uncertainty


class Profile(NamedTuple):
    """A profiled iteration: its program, the costs of its operations in order, and the graph of them."""

    iteration: Iteration
    program: Program
    measurements: list[Measurement]
    graph: Graph

    def exactness(self) -> Exactness:
        """Return what tells which regions in pieces have the bits of the whole."""
        return Exactness(self.program, residents(self.program, self.iteration))

    def in_pieces(self, found: Split, measurements: Sequence[Measurement], *, exact: bool) -> Graph:
        """Return the graph of the program with regions in pieces.

        exact: they have the bits of the whole, so their accuracy needs no iteration.
        """
        graph = graph_from(found.program, measurements, name=self.graph.name)
        source = {
            **graph.source,
            **self.graph.source,
            **found.source(exact=exact),
            **whole_document(self.graph),
        }
        if not exact:
            kernels = found.kernels
            source["accuracy"] = accuracy(self.iteration, self.program, found.program, kernels).ratio
        return replace(graph, source=source)


def profile(
    model: str,
    device: str = "cpu",
    progress: Progress | None = None,
    optimizer: OptimizerChoice | None = None,
    *,
    compiling: bool = False,
    within: Budget | None = None,
    exact: bool = False,
) -> Graph:
    """Profile the iteration that a model file, `path[:entry]`, builds, as a graph: see `profiled`.

    within: operations run in pieces so that none needs more than half of this budget, as far as they split;
        `source.split` says which.
    exact: only in pieces that have the bits of the whole.
    """
    whole = profiled(model, device, progress, optimizer, compiling=compiling)
    graph = whole.graph
    if within is None:
        return graph
    peak = baseline(graph).peak
    room = max(0, within.bytes_of(peak, graph.resident_bytes) - graph.resident_bytes)
    choice = Choice(whole.program, whole.measurements, whole.exactness() if exact else None)
    found = choice.within(room // 2)  # the other half is for what waits
    if found is not None:
        tensors = residents(whole.program, whole.iteration)
        of_pieces = measured_pieces(whole.program, whole.measurements, found, tensors)
        graph = whole.in_pieces(found, of_pieces, exact=exact)
    return made_within(graph, within, peak, exact=exact)


def made_within(graph: Graph, budget: Budget, peak: int, *, exact: bool) -> Graph:
    """Return the graph with the budget in its `source` for which its operations run in pieces.

    peak: bytes of the baseline with whole operations, of which shares are.
    """
    asked = {
        "budget": budget.text,
        "bytes": budget.bytes_of(peak, graph.resident_bytes),
        "peak": peak,
        "exact": exact,
    }
    return replace(graph, source={**graph.source, "within": asked})


def profiled(
    model: str,
    device: str = "cpu",
    progress: Progress | None = None,
    optimizer: OptimizerChoice | None = None,
    *,
    compiling: bool = False,
) -> Profile:
    """Profile the iteration that a model file, `path[:entry]`, builds.

    Raises MemplanError, one line.

    optimizer: the updates of its weights; without one the gradients are the result.
    compiling: operations are fused by Inductor if that is faster; `source.compiled` says which, see
        docs/formats.md.

    `source` says where the graph comes from, how good the times are (`measured`, see `quality`) and whether
    the traced iteration equals eager PyTorch's (`eager`, see `verdict`).
    """
    report = progress or _unseen
    file = load_model_file(model)
    report(0, 0, "tracing")
    iteration, program = _traced(file, device, optimizer)
    rounds = measured_in_rounds(program, residents(program, iteration), progress, ran=True)
    report(0, 0, "comparing with eager PyTorch")
    clock = device_of(program.device).clock_rate()  # while the device is warm
    eager = verdict(iteration, program, graph_from(program, rounds.measurements()))
    check = check_against_eager(iteration, program, rounds, eager)
    # Taken anew: the check may have run more rounds.
    measured = rounds.measurements()
    figures = quality(measured, check)
    if updates_early(program):
        # By which machine is not known yet; buckets are always moved.
        measured = with_undo(measured, program, moves=bool(buckets_of(program)))
    graph = graph_from(program, measured, name=file.name)
    source = {
        "model": file.path,
        "entry": file.entry,
        "threads": torch.get_num_threads(),
        "measured": figures,
        "eager": eager,
        **({} if optimizer is None else {"optimizer": optimizer.document()}),
    }
    where = device_of(program.device)
    if (capability := where.capability()) is not None:
        source["capability"] = capability
    if card := where.surroundings():
        source["card"] = card if clock is None else {**card, "clock": clock}
    if constant := where.constant_bytes():
        source["constant"] = constant
    if compiling:
        found = chosen(program, measured, progress)
        exact = accuracy(iteration, program, found.program, found.kernels)
        graph = graph_from(found.program, found.measured, name=file.name)
        source |= {COMPILED: found.groups, "accuracy": exact.ratio}
    return Profile(iteration, program, measured, replace(graph, source={**graph.source, **source}))


def _unseen(done: int, total: int, name: str) -> None:
    """Report progress to nobody."""


def traced(model: str, device: str, optimizer: OptimizerChoice | None) -> tuple[Iteration, Program]:
    """Build the iteration of a model file and trace it: see `profiled`."""
    return _traced(load_model_file(model), device, optimizer)


def _traced(file: ModelFile, device: str, optimizer: OptimizerChoice | None) -> tuple[Iteration, Program]:
    check_device(device)
    iteration = updated(on_device(file.build(), device), optimizer)
    return iteration, trace_real_layouts(iteration)


def measure_program(
    program: Program,
    tensors: Mapping[int, torch.Tensor],
    progress: Progress | None = None,
    *,
    ran: bool = False,
    limit_seconds: float | None = None,
) -> list[Measurement]:
    """Measure each operation; equal signatures share one measurement.

    tensors: those of inputs, buffers and constants, by value. They and the random generator stay as they are.
    ran: all operations have been run before in this process, as `trace_real_layouts` does.
    limit_seconds: of the rounds after the first, by default `rounds.LIMIT_SECONDS`.

    Raises InputError if the user's profiler is on.
    """
    return measured_in_rounds(program, tensors, progress, ran=ran, limit_seconds=limit_seconds).measurements()


def measured_in_rounds(
    program: Program,
    tensors: Mapping[int, torch.Tensor],
    progress: Progress | None = None,
    *,
    ran: bool = False,
    limit_seconds: float | None = None,
) -> Rounds:
    """Measure each operation as `measure_program`, and return the rounds, which can go on."""
    check_profiler(program.device)
    rounds = Rounds(program, tensors, ran=ran)
    rounds.run_until_settled(progress, limit_seconds)
    return rounds


def graph_from(program: Program, measured: Sequence[Measurement], **labels: Any) -> Graph:
    """Build the graph with what was measured.

    labels: `name` and `source`, see graph_of.
    """
    program = with_true_sizes(program, measured)
    return graph_of(program, costs_of(program, measured), **labels)


def with_true_sizes(program: Program, measured: Sequence[Measurement]) -> Program:
    """Return the program with its storages as large as they came out.

    Some operations give back more than they say: `mse_loss` returns one number in a storage of its input's
    size.
    """
    storages = list(program.storages)
    for operation, one in zip(program.operations, measured, strict=True):
        for output, size in zip(operation.call.outputs, one.result_bytes, strict=False):
            # Results may be views of inputs, whose storages stay as they are.
            if output is not None and (storage := program.values[output].storage) in operation.writes:
                storages[storage] = storages[storage]._replace(bytes=size)
    return replace(program, storages=storages)


def costs_of(program: Program, measured: Sequence[Measurement]) -> list[Cost]:
    """Convert measurements to costs: the memory of an operation in addition to its outputs is its
    workspace.
    """

    def outputs(operation: Operation) -> int:
        return sum(program.storages[storage].bytes for storage in operation.writes)

    return [
        Cost(
            one.seconds,
            max(0, one.peak_bytes - outputs(operation)),
            one.host_seconds,
            one.host_bytes,
            one.launch,
        )
        for operation, one in zip(program.operations, measured, strict=True)
    ]


def quality(measured: Sequence[Measurement], check: Check | None = None) -> dict[str, Any]:
    """Return figures on how far the times can be trusted, for the graph's `source`.

    signatures: number of distinct calls.
    spread: interquartile range over median, the median over the distinct calls.
    spread_by_time: its mean over operations, weighted by their time.
    off: share of the time by which it may be wrong since rounds of measuring did not agree.
    sum, eager: seconds of the operations alone and in eager PyTorch, if that was measured.
    doubt: the line for the user, if there is one.
    """
    if not measured:
        return {"signatures": 0, "spread": 0.0, "spread_by_time": 0.0, "off": 0.0}
    # Equal calls share one object.
    distinct = list({id(one): one for one in measured}.values())
    seconds = [one.seconds for one in measured]
    figures: dict[str, Any] = {
        "signatures": len(distinct),
        "spread": round(float(np.median([one.spread for one in distinct])), 4),
        "spread_by_time": round(float(np.average([one.spread for one in measured], weights=seconds)), 4),
        "off": round(uncertainty(measured), 4),
    }
    if check is not None:
        figures |= {"sum": check.sum, "eager": check.eager}
    if (line := doubt_line(measured, check)) is not None:
        figures["doubt"] = line
    return figures
