"""The peak memory of a planned step's iterations: on the device, on the host, on the disk.

Device, if its allocator counts: all that it has handed out, whatever for, with what libraries keep there
(`constant`). On the CPU: what stays there, and the tracker's count of what is allocated and freed, exact on
the CPU (devices/measuring/live_bytes.py). The tracker knows only blocks that were made while it counted: so
what the schedule moves is copied once first, while it counts. Host and disk: the blocks and files themselves
are counted, with what `undo` keeps, and the workspace of updates on the CPU as it was profiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...devices.device.device import Device, StreamDevice
from ...devices.measuring.live_bytes import blocks_of, live_peak
from ...graphs.graph import Kind
from ...model.iteration import Inputs
from ...program.program import Program
from ...runtime.run.cycle import Cycle
from ...runtime.run.over_plan import WATCHED_ITERATIONS
from ...steps.execute import PlannedStep

RESIDENT = (Kind.INPUT, Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)
"""Kinds of storages that are there when an iteration begins."""


class Peaks(NamedTuple):
    """Peak memory of a planned step, in bytes.

    device, host, disk: the most at once in each memory.
    extra: of the device's, at most so many belong to no tensor of the plan, see `generator_bytes` and
        `PlannedStep.count_bytes`, or are copies for a CUDA graph.
    constant: of the device's, at most so many are what libraries keep, see `Device.constant_bytes`.
    reserved: what the allocator had of the device, with all that was free between tensors; None if nobody
        counts.
    """

    device: int
    host: int = 0
    disk: int = 0
    extra: int = 0
    constant: int = 0
    reserved: int | None = None


def peaks(step: PlannedStep, inputs: Inputs) -> Peaks:
    """Measure the peaks of the first iterations after restore_to_device."""

    def run() -> None:
        for _ in range(1 if step.cycle is None else WATCHED_ITERATIONS):
            step.run(inputs)

    return peaks_of(step, run)


def peaks_of(step: PlannedStep, run: Callable[[], None]) -> Peaks:
    """Return the peaks of `run`, which runs iterations of the step, after restore_to_device.

    The optimizer's states exist.
    """
    cycle, constant = step.cycle, step.device.constant_bytes()
    if cycle is None:
        step.place()  # what another step has would count twice: as there, and as it comes
        peak = device_peak(run, step.device, resident_bytes(step.program))
        return Peaks(
            peak,
            step.undo_bytes,
            extra=generator_bytes(step.program) + step.graph_bytes + step.count_bytes,
            constant=constant,
            reserved=_reserved(step.device),
        )
    step.restore_to_device()
    step.place()
    known = _known(cycle)
    # Moved tensors count by the copies that are on the device now, not as residents.
    start = resident_bytes(step.program, without=cycle.moved) + sum(known.values())
    peak = device_peak(run, step.device, start, known)
    disk = cycle.disk.count.peak if cycle.disk else 0
    host = cycle.host.count.peak + step.undo_bytes
    extra = generator_bytes(step.program) + step.count_bytes
    return Peaks(
        device=peak, host=host, disk=disk, extra=extra, constant=constant, reserved=_reserved(step.device)
    )


def device_peak(
    run: Callable[[], None], device: Device, start: int, known: Mapping[int, int] | None = None
) -> int:
    """Return the most bytes on the device while `run` runs.

    The allocator counts them if it can; otherwise they are `start` and what is allocated and freed meanwhile.

    known: see `live_peak`.
    """
    if isinstance(device, StreamDevice):
        device.release_unused()  # what the process had before must not count as reserved
    found = live_peak(run, device, known).peak_bytes
    return device.peak_bytes() if isinstance(device, StreamDevice) else start + found


def _reserved(device: Device) -> int | None:
    return device.reserved_peak_bytes() if isinstance(device, StreamDevice) else None


def generator_bytes(program: Program) -> int:
    """Return the bytes of a generator's state.

    On the CPU PyTorch hands out the state, saved if a draw is repeated, as a tensor.
    """
    draws = any(operation.random for operation in program.operations)
    return torch.get_rng_state().nbytes if draws and program.device.type == "cpu" else 0


def resident_bytes(program: Program, without: frozenset[int] = frozenset()) -> int:
    """Return the bytes of parameters, buffers, constants, optimizer states and inputs."""
    kept = (storage for x, storage in enumerate(program.storages) if x not in without)
    return sum(storage.bytes for storage in kept if storage.kind in RESIDENT)


def _known(cycle: Cycle) -> dict[int, int]:
    """Return the moved copies on the device, in memory that the tracker knows: address and bytes.

    A device that counts needs none of them.
    """
    if isinstance(cycle.device, StreamDevice):
        return {}

    def renew() -> None:
        for name, copy in cycle.held.items():
            cycle.held[name] = copy.clone() if isinstance(copy, Tensor) else copy

    live_peak(renew, cycle.program.device)
    return blocks_of(copy for copy in cycle.held.values() if isinstance(copy, Tensor))
