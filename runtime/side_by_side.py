"""A planned iteration measured beside eager PyTorch's, in one process: time, peak memory, results."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from ..graphs.graph import Kind
from .eager import Comparison, run_eager
from .execute import PlannedStep
from .iteration import Iteration
from .live_bytes import live_peak
from .pretence import compiling
from .program import Program
from .unchanged import unchanged
from .verdict import compare_if_it_fits


class Measured(NamedTuple):
    """seconds: the median of the repeats. peak_bytes: with parameters, buffers and inputs."""

    seconds: float
    peak_bytes: int


class SideBySide(NamedTuple):
    """loss: the planned iteration's, from the random state in which the comparison began.

    comparison, eager: None where there is not memory enough for an iteration without a plan.
    """

    comparison: Comparison | None
    loss: float
    eager: Measured | None
    planned: Measured


def side_by_side(iteration: Iteration, step: PlannedStep, repeats: int = 5) -> SideBySide:
    """Compare the results bitwise, then the peaks, then run both in turn `repeats` times.

    Module, buffers and random generators are afterwards what they were.
    """
    device = step.program.device
    with unchanged(iteration, device):
        loss = float(step.run(iteration.inputs).loss)
    comparison = compare_if_it_fits(iteration, step)

    def eager() -> None:
        with compiling(step.program.compiling):
            run_eager(iteration)

    def planned() -> None:
        step.run(iteration.inputs)

    runs = [planned] if comparison is None else [eager, planned]
    always = resident_bytes(step.program)
    times: list[list[float]] = [[] for _ in runs]
    with unchanged(iteration, device):
        if iteration.updates is not None:
            planned()  # the first iteration makes the optimizer's states
        peaks = [always + live_peak(run, device).peak_bytes for run in runs]
        for _ in range(repeats):
            for run, seconds in zip(runs, times, strict=True):
                seconds.append(_timed(run, device))
    measured = [Measured(median(seconds), peak) for seconds, peak in zip(times, peaks, strict=True)]
    return SideBySide(comparison, loss, measured[0] if comparison else None, measured[-1])


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
