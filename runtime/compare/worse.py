"""Plans that are worse than eager PyTorch in memory and in time alike: they are refused, with the figures."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from ...planner.budget import spelled
from ..model.iteration import Iteration
from ..model.unchanged import unchanged
from ..run.execute import PlannedStep
from .cost import Cost
from .eager import run_eager

MORE = 1.01
"""A plan takes more memory than eager if it takes so much of it at least: sizes are rounded."""

SLOWER = 1.1
"""And more time, if in the middle of several rounds, and in all but one by half of that."""

FIXED_SECONDS = 0.002
"""And by more than this: what a step costs whatever the model (checks, one call per operation) is no reason
to refuse a toy model, for which it is most of the time."""

ROUNDS, ROUND_SECONDS = 7, 0.03


def worse_than_eager(iteration: Iteration, step: PlannedStep, peak: int, eager: Cost) -> str | None:
    """A line where the plan is worse than eager in memory and in time. peak: of the plan, as simulated.

    Memory is exact. Time is measured anew, in rounds in which the two take turns, so that what else the
    machine does meets both: only a plan that is slower in nearly all of them counts as slower.
    """
    if peak < MORE * eager.peak_bytes:
        return None

    def planned() -> None:
        step.run(iteration.inputs)

    rounds = ROUNDS if eager.seconds < 1 else 3
    count = max(1, round(ROUND_SECONDS / max(eager.seconds, 1e-6)))
    times: list[tuple[float, float]] = []
    with unchanged(iteration, step.program.device):
        for _ in range(rounds + 1):
            one = _seconds(lambda: run_eager(iteration), count, step)
            times.append((one, _seconds(planned, count, step)))
            step.restore_to_device()
    del times[0]  # it makes what is made once
    ratios = sorted(ours / theirs for theirs, ours in times)
    if ratios[1] < 1 + (SLOWER - 1) / 2 or median(ratios) < SLOWER:
        return None
    theirs, ours = (median(column) for column in zip(*times, strict=True))
    return worse_in_both(peak, ours, eager._replace(seconds=theirs))


def worse_in_both(peak: int, seconds: float, eager: Cost) -> str | None:
    """A line where both are more than eager's. peak, seconds: of the plan."""
    if peak < MORE * eager.peak_bytes or seconds < max(SLOWER * eager.seconds, eager.seconds + FIXED_SECONDS):
        return None
    ours, theirs = (f"{time * 1e3:.3g} ms an iteration" for time in (seconds, eager.seconds))
    return (
        f"the plan is worse than eager PyTorch in both memory and time: it takes {spelled(peak)} and {ours}, "
        f"eager {spelled(eager.peak_bytes)} and {theirs}: train with eager PyTorch as it is, or give a "
        f"budget below {eager.peak_bytes:,} bytes"
    )


def _seconds(run: Callable[[], object], count: int, step: PlannedStep) -> float:
    step.device.synchronize()
    start = perf_counter()
    for _ in range(count):
        run()
    step.device.synchronize()
    return (perf_counter() - start) / count
