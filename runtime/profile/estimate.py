"""Estimate every operation of a program for a GPU that is not here: the graph's times by the roofline.

The program is that of PyTorch's CPU, traced on fake tensors. On the GPU itself PyTorch may choose other
operations: fused attention where there is dropout, cuDNN's batch normalisation. They take no more memory
than those counted here. A model is built and traced without memory for it: Llama 2 7B takes 15 s and half
a gigabyte.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch

from ...graphs.graph import Graph
from ...graphs.machine import Updates
from ...graphs.machines.gpus import Gpu
from ...graphs.machines.presets import Preset, find_preset
from ..device.device import StreamDevice
from ..measuring.stand_ins import signature, substitute
from ..model.file import ModelFile, load_model_file
from ..program.graph import Cost, graph_of
from ..program.program import Call, Program, values_read
from ..trace.trace import trace
from ..updates.optimizers import Choice, updated
from ..updates.rules import ADAMW, ADAMW_FUSED, effort, is_fused
from ..updates.updates import updates_weights
from .fake_build import fake_build
from .profile import Progress
from .roofline import (
    BANDWIDTH_EFFICIENCY,
    COMPUTE_EFFICIENCY,
    LAUNCH_SECONDS,
    distinct_bytes,
    seconds,
    work_of,
)

ESTIMATED = {
    "compute_efficiency": COMPUTE_EFFICIENCY,
    "bandwidth_efficiency": BANDWIDTH_EFFICIENCY,
    "launch_seconds": LAUNCH_SECONDS,
}
"""For a graph's `source`."""


def estimate(
    model: str, gpu: str, progress: Progress | None = None, optimizer: Choice | None = None
) -> Graph:
    """The graph of the iteration that a model file, `path[:entry]`, builds; its machine is the GPU's preset.

    optimizer: the updates of its weights, at the machine's speeds; without one the gradients are the result.
    Raises MemplanError, one line. `source.device` is the one whose operations were traced.
    """
    preset = find_preset(gpu)
    return estimate_file(load_model_file(model), preset, progress, optimizer=optimizer)


def estimate_file(
    file: ModelFile,
    preset: Preset,
    progress: Progress | None = None,
    batch: int | None = None,
    optimizer: Choice | None = None,
) -> Graph:
    """As `estimate`. batch: samples in an iteration, None: the model file's own."""
    program = trace(updated(fake_build(partial(file.build, batch)), optimizer))
    source = {
        "model": file.path,
        "entry": file.entry,
        "estimate": {
            "gpu": preset.gpu.name,
            "data": preset.gpu.source,
            **ESTIMATED,
        },
        **({} if optimizer is None else {"optimizer": optimizer.document()}),
    }
    return graph_of(
        program,
        estimate_program(program, preset.gpu, progress, preset.machine.updates),
        name=file.name,
        source=source,
        machine=preset.machine,
        block_bytes=StreamDevice.block_bytes,
    )


def estimate_program(
    program: Program, gpu: Gpu, progress: Progress | None = None, updates: Updates | None = None
) -> list[Cost]:
    """Per operation its roofline time; no workspace, since that is not known but of updates.

    updates: how fast AdamW runs on the device and on the host, where known.
    """
    known: dict[Hashable, Cost] = {}
    costs: list[Cost] = []
    for operation in program.operations:
        key = signature(program, operation.call)
        if key not in known:
            weights = updates_weights(operation)
            known[key] = (
                estimate_update(program, operation.call, gpu, updates or Updates())
                if weights
                else Cost(estimate_call(program, operation.call, gpu))
            )
        costs.append(known[key])
        if progress is not None:
            progress(len(costs), len(program.operations), operation.name)
    return costs


def estimate_call(program: Program, call: Call, gpu: Gpu) -> float:
    """Seconds."""
    tensors = {value: _layout(program, value) for value in values_read(call)}
    arguments, keywords = substitute(call.arguments, tensors), substitute(call.keywords, tensors)
    results: list[Any] = [None if value is None else _layout(program, value) for value in call.outputs]
    work = work_of(call.target, arguments, keywords, tuple(results) if call.several else results[0])
    return seconds(work, gpu)


def estimate_update(program: Program, call: Call, gpu: Gpu, updates: Updates) -> Cost:
    """By how often the update passes over as many bytes as the gradient has, beside AdamW, whose speed the
    machine names: a fused one beside the fused, where it names that; without a name at the bandwidth of the
    device, and on no host."""
    _weight, gradient, *_states = values_read(call)
    size = distinct_bytes(_layout(program, gradient))
    passes, temporaries = effort(call.target, call.keywords)
    passed = BANDWIDTH_EFFICIENCY * gpu.bandwidth
    device = _pass_rate(call, updates.device, updates.device_fused) or passed
    host = _pass_rate(call, updates.host, updates.host_fused)
    workspace = temporaries * size
    return Cost(
        passes * size / device + LAUNCH_SECONDS,
        workspace,
        None if host is None else passes * size / host,
        workspace,
    )


def _pass_rate(call: Call, adamw: float | None, fused: float | None) -> float | None:
    """How many bytes an update reads or writes per second. adamw, fused: bytes of weights that these update
    per second."""
    if fused is not None and is_fused(call.target, call.keywords):
        return ADAMW_FUSED.passes * fused
    return None if adamw is None else ADAMW.passes * adamw


def _layout(program: Program, value: int) -> torch.Tensor:
    """A tensor of the value's shape, strides and type, without data."""
    form = program.values[value]
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")
