"""Planned iterations and eager PyTorch's measured in one process for a report: time, peak memory, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from ...devices.device.choice import device_of
from ...guards.guards import simple_attributes_kept
from ...guards.unchanged import unchanged
from ...model.iteration import Iteration
from ...runtime.run.stopwatch import Span
from ...steps.execute import PlannedStep
from ...tracing.trace_context import compiling
from .comparison import Comparison
from .compiled import Compiled
from .eager import run_eager
from .peaks import Peaks, device_peak, peaks, resident_bytes
from .timing import AHEAD, Run, windows
from .verdict import compare_if_it_fits


class Measured(NamedTuple):
    """Time and peak memory of measured iterations.

    seconds: of an iteration, the median of the windows.
    peaks: the device's with parameters, buffers and inputs.
    """

    seconds: float
    peaks: Peaks

    @property
    def peak_bytes(self) -> int:
        return self.peaks.device


class SideBySide(NamedTuple):
    """Planned iterations and eager PyTorch's, measured in one process.

    loss: the planned iteration's, from the random state in which the comparison began.
    comparison, eager: None if there is not memory enough for an iteration without a plan.
    """

    comparison: Comparison | None
    loss: float
    eager: Measured | None
    planned: Measured


def side_by_side(
    iteration: Iteration,
    step: PlannedStep,
    repeats: int = 5,
    compiled: Compiled | None = None,
    report: Callable[[int, int, str], None] = lambda _done, _total, _name: None,
) -> SideBySide:
    """Compare the results bitwise, then the peaks, then run both in turn, each in `repeats` windows.

    compiled: if the step has compiled operations, what they were made of.
    report: takes a number done, a total (0: unknown), and a word.

    All that the iterations can change is afterwards what it was.
    """
    device = step.program.device
    report(0, 0, "comparing results")
    with unchanged(iteration, device, [step.program]):
        loss = step.run(iteration.inputs).loss
        assert loss is not None
        step.restore_to_device()
    comparison = compare_if_it_fits(iteration, step, compiled=compiled)

    def eager() -> None:
        with (
            compiling(comparison is not None and comparison.compiling),
            simple_attributes_kept(iteration.module),
        ):
            run_eager(iteration)

    def planned() -> None:
        step.run(iteration.inputs)

    def peaks_of(run: Callable[[], None]) -> Peaks:
        if run is planned:
            return peaks(step, iteration.inputs)
        return Peaks(device_peak(run, device_of(device), resident_bytes(step.program)))

    runs = [planned] if comparison is None else [eager, planned]
    with unchanged(iteration, device):
        if iteration.updates is not None:
            planned()  # the first iteration makes the optimizer's states
            step.restore_to_device()
        report(0, 0, "peaks")
        most = [peaks_of(run) for run in runs]
        times = windows([Run(run, step.restore_to_device) for run in runs], repeats, step, report=report)
        step.restore_to_device()
    measured = [Measured(median(seconds), peak) for seconds, peak in zip(times, most, strict=True)]
    return SideBySide(comparison, float(loss), measured[0] if comparison else None, measured[-1])


def spans(iteration: Iteration, step: PlannedStep) -> Sequence[Span]:
    """Return when each step of the schedule runs, in one planned iteration that follows others.

    Module, buffers and random generators are afterwards what they were.
    """
    with unchanged(iteration, step.program.device, [step.program]):
        # Copies of an iteration may reach into the next ones: time a steady state.
        for _ in range(AHEAD):
            step.run(iteration.inputs)
        step.begin_timing()
        for _ in range(AHEAD):
            step.run(iteration.inputs)
        times = step.end_timing()
        step.restore_to_device()
    assert times is not None
    return times.spans
