"""`plan profile`: a model traced, each of its operations measured, and one iteration compared with eager.

Each distinct call (operation, shapes, strides, dtypes, other arguments) is measured once, on synthetic
inputs, so that measuring takes far less memory than the iteration, and seconds if that takes seconds: a GPT-2
of 6 layers has 499 operations of which 88 are distinct. Only the comparison needs the memory of eager
PyTorch; if there is not that much, the graph says that it was not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...graphs.graph import Graph
from ..below_autograd import as_traced
from ..calls.randomness import generators_kept
from ..compare.accuracy import accuracy
from ..compare.verdict import verdict
from ..device.choice import check_device, device_of
from ..device.threads import as_updates_run, update_threads
from ..fusion.choice import COMPILED, chosen
from ..measuring.live_bytes import check_profiler, live_peak
from ..measuring.measure import Measurement, measure
from ..measuring.synthetic_inputs import SyntheticInputs, signature
from ..model.file import load_model_file
from ..model.iteration import on_device
from ..program.graph import Cost, graph_of
from ..program.program import Operation, Program
from ..trace.output_layouts import residents, trace_real_layouts
from ..updates.choice import Choice, updated
from ..updates.sums import adds_up
from ..updates.updates import updates_weights

Progress = Callable[[int, int, str], None]
"""Callback with the number of operations done, their total number, and the name of the last."""


def profile(
    model: str,
    device: str = "cpu",
    progress: Progress | None = None,
    optimizer: Choice | None = None,
    *,
    compiling: bool = False,
) -> Graph:
    """Profile the iteration that a model file, `path[:entry]`, builds, as a graph.

    Raises MemplanError, one line.

    optimizer: the updates of its weights; without one the gradients are the result.
    compiling: operations are fused by Inductor if that is faster; `source.compiled` says which, see
        docs/formats.md.

    `source` says where the graph comes from, how good the times are (`measured`, see `quality`) and whether
    the traced iteration equals eager PyTorch's (`eager`, see `verdict`).
    """
    check_device(device)
    file = load_model_file(model)
    iteration = updated(on_device(file.build(), device), optimizer)
    program = trace_real_layouts(iteration)
    measured = measure_program(program, residents(program, iteration), progress)
    graph = graph_from(program, measured, name=file.name)
    source = {
        "model": file.path,
        "entry": file.entry,
        "threads": torch.get_num_threads(),
        "measured": quality(measured),
        "eager": verdict(iteration, program, graph),
        **({} if optimizer is None else {"optimizer": optimizer.document()}),
    }
    if constant := device_of(program.device).constant_bytes():
        source["constant"] = constant
    if compiling:
        found = chosen(program, measured, progress)
        exact = accuracy(iteration, program, found.program, found.kernels)
        graph = graph_from(found.program, found.measured, name=file.name)
        source |= {COMPILED: found.groups, "accuracy": exact.ratio}
    return replace(graph, source={**graph.source, **source})


def measure_program(
    program: Program, tensors: Mapping[int, torch.Tensor], progress: Progress | None = None
) -> list[Measurement]:
    """Measure each operation; equal signatures share one measurement.

    tensors: those of inputs, buffers and constants, by value. They and the random generator stay as they are.

    Raises InputError if the user's profiler is on.
    """
    check_profiler(program.device)
    stand_ins = SyntheticInputs(program, tensors)
    known: dict[Hashable, Measurement] = {}
    measured: list[Measurement] = []
    with generators_kept(program.random_sources), as_traced(program.device):
        for operation in program.operations:
            key = signature(program, operation.call)
            if key not in known:
                known[key] = measured_call(program, operation, stand_ins)
            measured.append(known[key])
            stand_ins.advance()
            if progress is not None:
                progress(len(measured), len(program.operations), operation.name)
    return measured


def measured_call(program: Program, operation: Operation, stand_ins: SyntheticInputs) -> Measurement:
    """Measure the operation at which `stand_ins` is.

    An update of weights, which may run in host memory too, is also measured there, and so is what adds a
    gradient to its sum. A call whose memory depends on the data is counted with what it takes at worst.
    """
    found = measure(stand_ins.calls(), str(program.device))
    worst = (live_peak(call, program.device).peak_bytes for call in stand_ins.calls_by_data())
    found = found._replace(peak_bytes=max((found.peak_bytes, *worst)))
    if not (updates_weights(operation) or adds_up(operation)):
        return found
    identical = program.device.type == "cpu" and update_threads() == torch.get_num_threads()
    host = found if identical else as_updates_run(lambda: _on_host(program, stand_ins))
    return found._replace(host_seconds=host.seconds, host_bytes=host.peak_bytes)


def _on_host(program: Program, stand_ins: SyntheticInputs) -> Measurement:
    with as_traced(torch.device("cpu")):
        return measure(stand_ins.calls_on_host())


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


def quality(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Return figures on how far the times can be trusted, for the graph's `source`.

    signatures: number of distinct calls.
    spread: interquartile range over median, the median over the distinct calls.
    spread_by_time: its mean over operations, weighted by their time.
    """
    if not measured:
        return {"signatures": 0, "spread": 0.0, "spread_by_time": 0.0}
    distinct = list({id(one): one for one in measured}.values())
    seconds = [one.seconds for one in measured]
    return {
        "signatures": len(distinct),
        "spread": round(float(np.median([one.spread for one in distinct])), 4),
        "spread_by_time": round(float(np.average([one.spread for one in measured], weights=seconds)), 4),
    }
