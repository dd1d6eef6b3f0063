"""Estimates of a program's operations for a GPU that is not here: the graph's times by the roofline.

The program has the operations that PyTorch runs on a GPU of that compute capability (devices/absent_gpu). A
model is built and traced without memory for it; of many equal layers four, where that gives the same program
(tracing/repeated.py).

What an operation demands is one thing, what a GPU makes of it another: `Demand.cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch

from ...devices.absent_gpu.absent_gpu import absent_gpu
from ...devices.absent_gpu.capability import Capability
from ...devices.device.device import StreamDevice
from ...devices.device.host_capacity import available_bytes
from ...devices.measuring.measure import Measurement
from ...devices.measuring.synthetic_inputs import signature, substitute
from ...graphs.errors import MemplanError
from ...graphs.graph import Graph, Phase
from ...graphs.machine import Updates
from ...graphs.machines.gpus import Gpu, lacks
from ...graphs.machines.presets import Preset, find_preset
from ...model.file import ModelFile, load_model_file
from ...model.iteration import Iteration
from ...program.graph import Cost, graph_of, with_costs
from ...program.program import Call, Program, refs, values_read
from ...torch_support.unsupported import is_value_dependent
from ...tracing.trace import trace
from ...updates.choice import OptimizerChoice, updated
from ...updates.early import updates_early, with_undo
from ...updates.optimizers.adamw import ADAMW, ADAMW_FUSED
from ...updates.rules import AT_ONCE, effort, in_bucket, in_rows, innermost, members, runs
from ...updates.sums import adds_up
from ...updates.updates import updates_weights
from .efficiency import efficiencies
from .fake_build import fake_build
from .roofline import Work, distinct_bytes, launch_seconds, seconds, work_of
from .rounds import Progress
from .workspace import Workspace, constant_bytes, workspace_of


def estimate_source(gpu: Gpu, works: Iterable[Work]) -> dict[str, Any]:
    """Return what a graph's source says of an estimate: for which GPU, by what, and which dtypes it lacks."""
    rates = dict.fromkeys(work.rate for work in works if work.flops)
    notes = [line for rate in rates if (line := lacks(gpu, rate)) is not None]
    capability = str(Capability(*gpu.capability))
    return {
        "gpu": gpu.name,
        "capability": capability,
        "data": gpu.source,
        **({"notes": notes} if notes else {}),
    }


def estimate(
    model: str, gpu: str | Preset, progress: Progress | None = None, optimizer: OptimizerChoice | None = None
) -> Graph:
    """Estimate the graph of the iteration that a model file, `path[:entry]`, builds; its machine is the
    GPU's preset.

    gpu: a preset, its name, or a machine file that describes its GPU.

    optimizer: the updates of its weights, at the machine's speeds; without one the gradients are the result.

    `source.device` is the one whose operations were traced. Raises MemplanError, one line.
    """
    preset = find_preset(gpu)
    return estimate_file(load_model_file(model), preset, progress, optimizer=optimizer)


def estimate_file(
    file: ModelFile,
    preset: Preset,
    progress: Progress | None = None,
    batch: int | None = None,
    optimizer: OptimizerChoice | None = None,
) -> Graph:
    """Estimate the graph of a model file, as `estimate` does.

    batch: samples in an iteration, None: the model file's own.
    """
    program = traced(file, batch, optimizer, preset.gpu).program
    return graph_from_demands(file, preset, program, demands_of(program, progress), optimizer)


class Traced(NamedTuple):
    """A program, and the capabilities whose GPUs run the same (`Questions.kinds`)."""

    program: Program
    kinds: frozenset[Capability]


def traced(file: ModelFile, batch: int | None, optimizer: OptimizerChoice | None, gpu: Gpu) -> Traced:
    """Trace the program that a GPU runs, of a model that is built without memory for it."""
    return _traced_for(Capability(*gpu.capability), partial(file.build, batch), optimizer)


def trace_for(
    capability: Capability, build: Callable[[], Iteration], optimizer: OptimizerChoice | None = None
) -> Program:
    """Trace the program that a GPU of this capability runs.

    The model is built without memory; with memory, on the host, if its code asks for values of its tensors
    and the host has room for its weights.
    """
    return _traced_for(capability, build, optimizer).program


def _traced_for(
    capability: Capability, build: Callable[[], Iteration], optimizer: OptimizerChoice | None
) -> Traced:
    if optimizer is not None:
        optimizer.load()  # a package that looks for a GPU when it is imported would find the absent one
    with absent_gpu(capability) as questions:
        iteration = fake_build(build)
        try:
            program = trace(updated(iteration, optimizer))
            return Traced(program, questions.kinds)
        except MemplanError as error:
            weights = sum(parameter.nbytes for parameter in iteration.module.parameters())
            # Unknown host memory counts as enough.
            if not is_value_dependent(error.__cause__ or error) or weights > (available_bytes() or weights):
                raise
        program = trace(updated(build(), optimizer))
        return Traced(program, questions.kinds)


def graph_from_demands(
    file: ModelFile,
    preset: Preset,
    program: Program,
    demands: Sequence[Demand],
    optimizer: OptimizerChoice | None,
) -> Graph:
    costs = costs_of(program, demands, preset.gpu, preset.machine.updates)
    if updates_early(program):
        costs = with_journal(costs, program, preset, moves=True)
    return graph_from_costs(file, preset, program, demands, costs=costs, optimizer=optimizer)


def graph_from_costs(
    file: ModelFile,
    preset: Preset,
    program: Program,
    demands: Sequence[Demand],
    *,
    costs: Sequence[Cost],
    optimizer: OptimizerChoice | None,
) -> Graph:
    """Return the graph of a program. demands: of what its operations stand for, which `source` names."""
    source = {
        "model": file.path,
        "entry": file.entry,
        **_source_on(preset, demands),
        **({} if optimizer is None else {"optimizer": optimizer.document()}),
    }
    return graph_of(
        program,
        costs,
        name=file.name,
        source=source,
        machine=preset.machine,
        block_bytes=StreamDevice.block_bytes,
    )


def graph_on(graph: Graph, preset: Preset, program: Program, demands: Sequence[Demand]) -> Graph:
    """Return the graph of the same program on another GPU that runs the same operations."""
    costs = costs_of(program, demands, preset.gpu, preset.machine.updates)
    return with_costs(graph, costs, _source_on(preset, demands), preset.machine)


def _source_on(preset: Preset, demands: Sequence[Demand]) -> dict[str, Any]:
    works = (one.work for one in demands)
    return {"estimate": estimate_source(preset.gpu, works), "constant": constant_bytes(preset.gpu)}


@dataclass(frozen=True)
class Demand:
    """Demand of one operation on a GPU.

    work: of an update its products of matrices alone.
    workspace: see workspace.py; of an update its temporaries.
    passes: of an update, how often it walks over as many bytes as the gradient has (`size`).
    fused: by a fused kernel.
    calls: how many updates it runs, one after the other.
    """

    work: Work
    workspace: Workspace
    passes: int | None = None
    size: int = 0
    fused: bool = False
    calls: int = 1

    def cost(self, gpu: Gpu, updates: Updates, phase: Phase) -> Cost:
        """Return the cost by the roofline; that of an update by how often it passes over its bytes,
        relative to AdamW.

        The machine names AdamW's speed. A fused update is compared with the fused AdamW, if the machine names
        that. Without a named speed an update runs at the bandwidth of the device, and on no host. Products of
        matrices take time in addition, and run on no host, whose speed at them no machine names.
        """
        launch = launch_seconds(phase, self.work.kind, gpu)
        if self.passes is None:
            return Cost(seconds(self.work, gpu), self.workspace.usual, launch_seconds=launch)
        passed = self.passes * self.size
        host = pass_rate(updates.host, updates.host_fused, fused=self.fused)
        products, launch = 0.0, launch * self.calls
        if self.work.flops:
            host, products = None, seconds(self.work, gpu)
        return Cost(
            update_seconds(passed, gpu, updates, fused=self.fused, calls=self.calls) + products,
            self.workspace.usual,
            None if host is None else passed / host,
            self.workspace.usual,
            launch,
        )


def update_seconds(passed: int, gpu: Gpu, updates: Updates, *, fused: bool, calls: int = 1) -> float:
    """Return the time of an update on the device.

    passed: bytes that it reads and writes. calls: how many updates of so many bytes in all.
    """
    device = pass_rate(updates.device, updates.device_fused, fused=fused)
    kernel = efficiencies().kernel
    if device is None:
        return seconds(Work(0, passed, ""), gpu) + (calls - 1) * kernel
    return passed / device + calls * kernel


def estimate_program(
    program: Program, gpu: Gpu, progress: Progress | None = None, updates: Updates | None = None
) -> list[Cost]:
    """Return, per operation, its roofline time and its workspace.

    updates: how fast AdamW runs on the device and on the host, if known.
    """
    return costs_of(program, demands_of(program, progress), gpu, updates or Updates())


def costs_of(program: Program, demands: Sequence[Demand], gpu: Gpu, updates: Updates) -> list[Cost]:
    """Return the cost of each operation on a GPU, from what it demands."""
    known: dict[tuple[int, Phase], Cost] = {}  # equal calls have one demand
    for operation, demand in zip(program.operations, demands, strict=True):
        # By id: equal calls have one demand, and `demands` keeps each alive.
        if (key := (id(demand), operation.phase)) not in known:
            known[key] = demand.cost(gpu, updates, operation.phase)
    return [known[id(demand), one.phase] for one, demand in zip(program.operations, demands, strict=True)]


def with_journal(costs: Sequence[Cost], program: Program, preset: Preset, *, moves: bool) -> list[Cost]:
    """Add to the times of early updates those of their copies to the journal, see `with_undo`.

    The memory of a second pass is there: estimates have its temporary.
    """
    links, updates = preset.machine.links, preset.machine.updates
    # A copy reads and writes: two of the passes that AdamW makes in the same time.
    host = inf if updates.host_fused is None else ADAMW_FUSED.passes * updates.host_fused / 2
    rates = inf if links.d2h is None else links.d2h.rate, host
    measured = [Measurement(one.seconds, 0.0, 0, host_seconds=one.host_seconds) for one in costs]
    with absent_gpu(Capability(*preset.gpu.capability)):
        found = with_undo(measured, program, moves=moves, rates=rates)
    both = zip(costs, found, strict=True)
    return [cost._replace(seconds=one.seconds, host_seconds=one.host_seconds) for cost, one in both]


def demands_of(program: Program, progress: Progress | None = None) -> list[Demand]:
    """Return each operation's demand."""
    known: dict[Hashable, Demand] = {}
    demands: list[Demand] = []
    for operation in program.operations:
        key = signature(program, operation.call)
        if key not in known:
            asks = _update if updates_weights(operation) else _sum if adds_up(operation) else _demand
            known[key] = asks(program, operation.call)
        demands.append(known[key])
        if progress is not None:
            progress(len(demands), len(program.operations), operation.name)
    return demands


def _demand(program: Program, call: Call) -> Demand:
    tensors = {value: _layout(program, value) for value in values_read(call)}
    arguments, keywords = substitute(call.arguments, tensors), substitute(call.keywords, tensors)
    results: list[Any] = [None if value is None else _layout(program, value) for value in call.outputs]
    made = call.target, arguments, keywords, tuple(results) if call.several else results[0]
    return Demand(work_of(*made), workspace_of(*made))


def _sum(program: Program, call: Call) -> Demand:
    """Return the demand of adding gradients to their sums: both are read, the sums are written."""
    totals = [*refs(call.arguments)][::2]
    size = sum(distinct_bytes(_layout(program, total)) for total in totals)
    return Demand(Work(0, 0, "bfloat16", "pointwise"), Workspace(0, 0), passes=3, size=size, fused=True)


def _update(program: Program, call: Call) -> Demand:
    if runs(call, in_bucket):
        each = [_update(program, one) for one in members(call)]
        work = Work(sum(one.work.flops for one in each), 0, "bfloat16", "product")
        total, sizes = sum(one.size for one in each), [one.workspace.usual for one in each]
        if call.keywords["each"] in AT_ONCE:  # one kernel, on the copies of all
            return replace(each[0], work=work, workspace=Workspace(sum(sizes), sum(sizes)), size=total)
        workspace = Workspace(max(sizes), max(sizes))
        return replace(each[0], work=work, workspace=workspace, size=total, calls=len(each))
    # Update functions read weight, gradient, then states.
    _weight, gradient, *_states = values_read(call)
    like, update = _layout(program, gradient), innermost(call.target, call.keywords)
    if runs(call, in_rows):
        like = like[call.keywords["start"] : call.keywords["stop"]]
    size, work = distinct_bytes(like), Work(update.flops(like.shape, call.keywords), 0, "bfloat16", "product")
    passes, temporaries = effort(call.target, call.keywords)
    workspace = Workspace(temporaries * size, temporaries * size)
    return Demand(work, workspace, passes, size, update.fused)


def pass_rate(adamw: float | None, fused_adamw: float | None, *, fused: bool) -> float | None:
    """Return how many bytes an update reads or writes per second.

    adamw, fused_adamw: bytes of weights that these update per second.
    """
    if fused and fused_adamw is not None:
        # AdamW's bytes of weights per second, times how often it passes over them.
        return ADAMW_FUSED.passes * fused_adamw
    return None if adamw is None else ADAMW.passes * adamw


def _layout(program: Program, value: int) -> torch.Tensor:
    """Create a tensor of the value's shape, strides and dtype, without data."""
    form = program.values[value]
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")
