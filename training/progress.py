"""What a step is at, while it plans and while it trains: told to whoever asked."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import cast

from torch import Tensor

from ..graphs.errors import InputError
from ..graphs.units import format_bytes

_SECONDS_BETWEEN = 0.2
"""Between two lines on a terminal: what is told more often costs time, a loss a wait for the device."""


@dataclass(frozen=True)
class ProgressEvent:
    """phase: trace, measure, compile, solve, compare or train. done: of `total` operations that are
    measured, kernels, or iterations. text: the solver's line. loss: of the last iteration; to read it waits
    for the device. seconds: of an iteration. planned: bytes on the device, and on the host. used: the most so
    far; None where nobody counts, on the CPU's device."""

    phase: str
    done: int = 0
    total: int | None = None
    text: str = ""
    loss: Tensor | None = None
    seconds: float | None = None
    planned: tuple[int, int] = (0, 0)
    used: tuple[int | None, int] = (None, 0)

    @property
    def process(self) -> int | None:
        """Bytes of memory that this process has now, all its libraries included; None where the system does
        not tell."""
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
        except OSError:
            return None

    def __str__(self) -> str:
        parts = [self.phase]
        if self.done:
            parts.append(f"{self.done:,}" + (f" of {self.total:,}" if self.total else ""))
        if self.loss is not None:
            parts.append(f"loss {self.loss.item():.6g}")
        if self.seconds:
            parts.append(f"{1 / self.seconds:.3g} a second")
        if self.planned[0]:
            parts.append(f"device {_of(self.used[0], self.planned[0])}")
            if self.planned[1]:
                parts.append(f"host {_of(self.used[1], self.planned[1])}")
            if self.used[0] is None and (process := self.process):
                parts.append(f"process {format_bytes(process)}")
        return ", ".join([*parts, self.text] if self.text else parts)


def _of(used: int | None, planned: int) -> str:
    """'1.02 of 1.10 GiB', or what is planned alone."""
    if used is None:
        return f"{format_bytes(planned)} planned"
    number, unit = format_bytes(used).split()
    same = unit == format_bytes(planned).split()[1]
    return f"{number if same else format_bytes(used)} of {format_bytes(planned)}"


Progress = Callable[[ProgressEvent], None]


def progress_callback(progress: bool | Progress) -> Progress:
    """Return the callback that is meant. Raise InputError for what can't be called.

    True is a line on standard error if that is a terminal, False none.
    """
    if isinstance(progress, bool):
        return Line() if progress and sys.stderr is not None and sys.stderr.isatty() else _nothing
    if not callable(cast(object, progress)):
        raise InputError(f"progress={progress!r}: give a function that is told, True or False")
    return progress


class Line:
    """Written over and over. What is said of training in words stays, in a line of its own."""

    def __init__(self) -> None:
        self._last, self._phase = 0.0, ""

    def __call__(self, told: ProgressEvent) -> None:
        stays = told.phase == "train" and bool(told.text)
        if stays or told.phase != self._phase or monotonic() - self._last > _SECONDS_BETWEEN:
            self._phase = told.phase
            line = "".join(letter for letter in str(told) if letter.isprintable())
            line, end = (line, "\n") if stays else (line[:110], "")
            print(f"\r\x1b[2Kmemplan: {line}", end=end, file=sys.stderr, flush=True)
            self._last = monotonic()


def _nothing(_told: ProgressEvent) -> None:
    pass
