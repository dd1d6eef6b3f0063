"""A planned iteration measured beside eager PyTorch's, in one process: time, peak memory, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from ..device.choice import device_of
from ..measuring.live_bytes import live_peak
from ..model.granted import plain_attributes_kept
from ..model.iteration import Iteration
from ..model.unchanged import unchanged
from ..run.execute import PlannedStep
from ..trace.pretence import compiling
from .eager import Comparison, run_eager
from .peaks import Peaks, peaks, resident_bytes
from .verdict import compare_if_it_fits


class Measured(NamedTuple):
    """seconds: the median of the repeats. peaks: the device's with parameters, buffers and inputs."""

    seconds: float
    peaks: Peaks

    @property
    def peak_bytes(self) -> int:
        return self.peaks.device


class SideBySide(NamedTuple):
    """loss: the planned iteration's, from the random state in which the comparison began.

    comparison, eager: None where there is not memory enough for an iteration without a plan.
    """

    comparison: Comparison | None
    loss: float
    eager: Measured | None
    planned: Measured


def side_by_side(iteration: Iteration, step: PlannedStep, repeats: int = 5) -> SideBySide:
    """Compare the results bitwise, then the peaks, then run both `repeats` times.

    In turn; but where tensors are moved eager comes first, and the planned iterations follow each other as
    in training. Module, buffers and random generators are afterwards what they were.
    """
    device = step.program.device
    with unchanged(iteration, device):
        loss = step.run(iteration.inputs).loss
        assert loss is not None
        step.recall()
    comparison = compare_if_it_fits(iteration, step)

    def eager() -> None:
        with (
            compiling(comparison is not None and comparison.compiling),
            plain_attributes_kept(iteration.module),
        ):
            run_eager(iteration)

    def planned() -> None:
        step.run(iteration.inputs)

    def peaks_of(run: Callable[[], None]) -> Peaks:
        if run is planned:
            return peaks(step, iteration.inputs)
        return Peaks(resident_bytes(step.program) + live_peak(run, device).peak_bytes)

    groups = [[eager, planned]] if step.cycle is None else [[eager], [planned]]
    measured: list[Measured] = []
    with unchanged(iteration, device):
        if iteration.updates is not None:
            planned()  # the first iteration makes the optimizer's states
            step.recall()
        for group in groups if comparison is not None else [[planned]]:
            most = [peaks_of(run) for run in group]
            times = _in_turn(group, repeats, device)
            measured += [Measured(median(seconds), peak) for seconds, peak in zip(times, most, strict=True)]
        step.recall()
    return SideBySide(comparison, float(loss), measured[0] if comparison else None, measured[-1])


def _in_turn(runs: Sequence[Callable[[], None]], repeats: int, device: torch.device) -> list[list[float]]:
    """Per run, the seconds of each repeat."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, seconds in zip(runs, times, strict=True):
            seconds.append(_timed(run, device))
    return times


def _timed(run: Callable[[], None], device: torch.device) -> float:
    start = perf_counter()
    run()
    device_of(device).synchronize()
    return perf_counter() - start
