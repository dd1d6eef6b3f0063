"""A planned iteration measured beside eager PyTorch's, in one process: time, peak memory, results."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from ..graphs.graph import Kind
from .eager import Comparison, compare, run_eager, unchanged
from .execute import PlannedStep
from .iteration import Iteration
from .live_bytes import live_peak
from .pretence import compiling
from .program import Program


class Measured(NamedTuple):
    """seconds: the median of the repeats. peak_bytes: with parameters, buffers and inputs."""

    seconds: float
    peak_bytes: int


class SideBySide(NamedTuple):
    """loss: the planned iteration's, from the random state in which the comparison began."""

    comparison: Comparison
    loss: float
    eager: Measured
    planned: Measured


def side_by_side(iteration: Iteration, step: PlannedStep, repeats: int = 5) -> SideBySide:
    """Compare the results bitwise, then the peaks, then run both in turn `repeats` times.

    Module, buffers and random generators are afterwards what they were.
    """
    comparison = compare(iteration, step)
    device = step.program.device
    with unchanged(iteration, device):
        loss = float(step.run(iteration.inputs).loss)

    def eager() -> None:
        with compiling(step.program.compiling):
            run_eager(iteration)

    def planned() -> None:
        step.run(iteration.inputs)

    always = resident_bytes(step.program)
    times: tuple[list[float], list[float]] = [], []
    with unchanged(iteration, device):
        peaks = [always + live_peak(run, device).peak_bytes for run in (eager, planned)]
        for _ in range(repeats):
            for run, seconds in zip((eager, planned), times, strict=True):
                seconds.append(_timed(run, device))
    measured = [Measured(median(seconds), peak) for seconds, peak in zip(times, peaks, strict=True)]
    return SideBySide(comparison, loss, *measured)


def resident_bytes(program: Program) -> int:
    """Bytes of parameters, buffers, constants and inputs."""
    there = (Kind.INPUT, Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)
    return sum(storage.bytes for storage in program.storages if storage.kind in there)


def _timed(run: Callable[[], None], device: torch.device) -> float:
    start = perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - start
