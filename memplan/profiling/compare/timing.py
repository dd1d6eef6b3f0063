"""Seconds of iterations, measured as training goes: over many in a row, with one wait at their end.

What overlaps from one iteration to the next counts as it does in training. Several runs take turns, a window
of iterations each, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from ...devices.device.device import Device, StreamDevice
from ...steps.execute import PlannedStep

WINDOW_SECONDS = 0.2
MOST_ITERATIONS = 50
"""Most iterations of a window, however short they are."""

AHEAD = 2
"""Number of iterations before a window if copies or launches run ahead: so all windows start in the same
state.
"""


class Run(NamedTuple):
    """An iteration to time.

    iterate: runs it once.
    put_back: called after each window of it.
    """

    iterate: Callable[[], object]
    put_back: Callable[[], None]


def windows(
    runs: Sequence[Run],
    count: int,
    step: PlannedStep,
    seconds: float = WINDOW_SECONDS,
    most: int = MOST_ITERATIONS,
    report: Callable[[int, int, str], None] = lambda _done, _total, _name: None,
) -> list[list[float]]:
    """Return for each run the seconds of an iteration, window by window.

    count: windows of each run.
    seconds: length of a window, from which follows how many iterations it has.
    most: iterations of a window at most.
    report: takes the number of windows done, their total, and a word.
    """
    ahead = AHEAD if step.cycle is not None or isinstance(step.device, StreamDevice) else 0
    times: list[list[float]] = [[] for _ in runs]
    lengths = [0] * len(runs)
    for number in range(count):
        report(number, count, "windows of each")
        for place, (iterate, put_back) in enumerate(runs):
            if not lengths[place]:  # the first iteration is not part of a window: it makes what is made once
                one = window(iterate, 1, 0, step.device)
                lengths[place] = min(most, max(1, ceil(seconds / max(one, 1e-9))))  # max: a clock may show 0
            times[place].append(window(iterate, lengths[place], ahead, step.device))
            put_back()
    return times


def window(iterate: Callable[[], object], count: int, ahead: int, device: Device) -> float:
    """Return the seconds of an iteration among `count` in a row, after `ahead` others."""
    for _ in range(ahead):
        iterate()
    start = device.stamp()
    for _ in range(count):
        iterate()
    end = device.stamp()
    # Only at the end: a wait between iterations would keep them from overlapping.
    device.synchronize()
    # elapsed_time is in milliseconds, as that of CUDA's events.
    return start.elapsed_time(end) / 1000 / count
