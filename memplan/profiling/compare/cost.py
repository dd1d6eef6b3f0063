"""The cost of an iteration of eager PyTorch, compared with a plan of it.

A budget's share is one of the baseline: the traced program that keeps everything. Eager PyTorch may take
less than that: a model's own checkpoints are left out of a trace, packed sequences are traced step by step.
It runs when a plan is compared, so it is measured then. A plan that is worse in both memory and time is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

from ...devices.device.choice import device_of
from ...devices.measuring.live_bytes import can_count, live_peak
from ...guards.unchanged import unchanged
from ...model.iteration import Iteration
from ...planner.budget import spelled
from ...program.program import Program
from ...steps.execute import PlannedStep
from .eager import run_eager
from .peaks import resident_bytes
from .timing import Run, windows

T = TypeVar("T")

LESS = 0.95
"""Eager takes less than the baseline if it takes so much of it at most."""

MORE = 1.01
"""A plan takes more memory than eager if it takes so much of it at least: sizes are rounded."""

SLOWER = 1.1
"""Factor of time above which a plan counts as slower: in the median of several rounds, and in all rounds
but one by half of the excess.
"""

FIXED_SECONDS = 0.002
"""Seconds by which the plan must also be slower: the fixed cost of a step (checks, one call per operation)
does not justify refusing a toy model, for which it is most of the time.
"""

ROUNDS, ROUND_SECONDS, MOST_IN_A_ROUND = 7, 0.03, 1000


class Cost(NamedTuple):
    """The cost of an iteration.

    peak_bytes: the most on the device, weights, states and inputs included.
    """

    peak_bytes: int
    seconds: float


class EagerCost:
    """Measurement of the iterations that a comparison runs anyway: the peak of one, and the time of the
    fastest other one, if there is another.
    """

    def __init__(self, program: Program, measured: int = 2) -> None:
        """Start with no measurement.

        measured: number of the iteration whose peak counts, by default of the second, which has all states.
        """
        self._measured = measured
        self._device = device_of(program.device)
        self._resident = resident_bytes(program)
        self._peak: int | None = None
        self._seconds: float | None = None
        self._runs = 0

    def run(self, call: Callable[[], T]) -> T:
        self._runs += 1
        if self._runs == self._measured and can_count(self._device):
            found = live_peak(lambda: self._device.once(call), self._device)
            # live_peak counts what the iteration allocates, on top of what is resident.
            self._peak = self._resident + found.peak_bytes
            result, seconds = found.result
            self._seconds = seconds if self._seconds is None else self._seconds  # counting takes time too
            return result
        result, seconds = self._device.once(call)
        # The fastest: what else the machine does only lengthens a run.
        self._seconds = seconds if self._seconds is None else min(self._seconds, seconds)
        return result

    @property
    def cost(self) -> Cost | None:
        """Return the cost of the measured iterations, None if it was not measured."""
        if self._peak is None or self._seconds is None:
            return None
        return Cost(self._peak, self._seconds)


def below_baseline(eager: Mapping[str, Any], baseline: int, outside: int = 0) -> str | None:
    """Return a line if eager takes less than the baseline.

    eager: as in a graph's `source`.
    baseline: its peak, in bytes.
    outside: bytes of the loop that are in addition to either.
    """
    peak: int | None = eager.get("peak")
    if peak is None or peak > LESS * baseline:
        return None
    peak, baseline = peak + outside, baseline + outside
    return (
        f"eager PyTorch takes {spelled(peak)}, {peak / baseline:.0%} of the baseline of {spelled(baseline)} "
        "that a budget's share is a share of: only a plan below that saves memory"
    )


def worse_than_eager(
    iteration: Iteration, step: PlannedStep, peak: int, eager: Cost, outside: int = 0, least: int = 0
) -> str | None:
    """Return a line if the plan is worse than eager in memory and in time.

    Memory is exact. Time is measured anew, in rounds in which the two take turns: only a plan that is slower
    in nearly all of them counts as slower.

    peak: the plan's, as simulated, in bytes.
    outside: bytes of the budget that are not the plan's.
    least: the minimum memory of plans, in bytes.
    """
    if peak < MORE * eager.peak_bytes:
        return None
    runs = (
        Run(lambda: run_eager(iteration), lambda: None),
        Run(lambda: step.run(iteration.inputs), step.restore_to_device),
    )
    # Seven rounds of long iterations would take too long.
    rounds = ROUNDS if eager.seconds < 1 else 3
    with unchanged(iteration, step.program.device):
        of_eager, of_plan = windows(runs, rounds, step, ROUND_SECONDS, MOST_IN_A_ROUND)
    if not is_slower(of_plan, of_eager):
        return None
    return worse_in_both(peak, median(of_plan), eager._replace(seconds=median(of_eager)), outside, least)


def is_slower(of_plan: Sequence[float], of_eager: Sequence[float]) -> bool:
    """Return whether a plan is slower than eager beyond doubt, by seconds of an iteration in each round."""
    ratios = sorted(plan / eager for plan, eager in zip(of_plan, of_eager, strict=True))
    # The second smallest: one round may be off by chance.
    return ratios[1] >= 1 + (SLOWER - 1) / 2 and median(ratios) >= SLOWER


def worse_in_both(peak: int, seconds: float, eager: Cost, outside: int = 0, least: int = 0) -> str | None:
    """Return a line if both memory and time are more than eager's.

    peak: the plan's, in bytes.
    seconds: the plan's, of an iteration.
    outside: bytes of the budget that are not the plan's.
    least: the minimum memory of plans, in bytes: a budget below eager's peak is advised if that is lower.
    """
    if peak < MORE * eager.peak_bytes or seconds < max(SLOWER * eager.seconds, eager.seconds + FIXED_SECONDS):
        return None
    own, theirs = (f"{time * 1e3:.3g} ms an iteration" for time in (seconds, eager.seconds))
    below = f", or give a budget below {eager.peak_bytes + outside:,} bytes"
    planned, usual = (spelled(size + outside) for size in (peak, eager.peak_bytes))
    return (
        f"the plan is worse than eager PyTorch in both memory and time: it takes {planned} and {own}, "
        f"eager {usual} and {theirs}: train with eager PyTorch as it is"
        f"{below if least < eager.peak_bytes else ''}"
    )
