"""Progress events of planning and training, and the callbacks that receive them."""

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
"""Seconds between two lines on a terminal. More frequent lines cost time: a loss waits for the device."""


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of planning or training, as passed to the `progress` callback of `memplan.optimize`.

    Attributes:
        phase (str): trace, measure, compile, solve, compare or train.
        done (int, default 0): number of measured operations, of compiled kernels, or of iterations so far.
        total (int, default None): number of operations or kernels in all, if known.
        text (str, default ""): a line of the solver, or a note on the plan.
        loss (Tensor, default None): loss of the last iteration; reading its value waits for the device.
        seconds (float, default None): seconds per iteration.
        planned (tuple of int, default (0, 0)): planned peaks on the device and on the host, bytes.
        used (tuple of int, default (None, 0)): measured peaks on the device and on the host so far, bytes.
            None if the device's allocator does not count, as on the CPU.
    """

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
        """Memory of this process now, in bytes, with all its libraries.

        None if the system does not report it.
        """
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
    """Return used and planned bytes as '1.02 of 1.10 GiB', or the planned bytes alone."""
    if used is None:
        return f"{format_bytes(planned)} planned"
    number, unit = format_bytes(used).split()
    same = unit == format_bytes(planned).split()[1]
    return f"{number if same else format_bytes(used)} of {format_bytes(planned)}"


Progress = Callable[[ProgressEvent], None]


def progress_callback(progress: bool | Progress) -> Progress:
    """Return the callback for the option `progress`. Raise InputError for a value that can't be called.

    progress: True for a line on standard error if that is a terminal, False for no report.
    """
    if isinstance(progress, bool):
        return Line() if progress and sys.stderr is not None and sys.stderr.isatty() else _nothing
    if not callable(cast(object, progress)):
        raise InputError(f"progress={progress!r}: give a function, True or False")
    return progress


class Line:
    """Callback that overwrites one line on standard error.

    Texts about measuring and training stay, each on its own line.
    """

    def __init__(self) -> None:
        self._last, self._phase = 0.0, ""

    def __call__(self, event: ProgressEvent) -> None:
        stays = event.phase in ("measure", "train") and bool(event.text)
        if stays or event.phase != self._phase or monotonic() - self._last > _SECONDS_BETWEEN:
            self._phase = event.phase
            line = "".join(letter for letter in str(event) if letter.isprintable())
            line, end = (line, "\n") if stays else (line[:110], "")
            print(f"\r\x1b[2Kmemplan: {line}", end=end, file=sys.stderr, flush=True)
            self._last = monotonic()


def _nothing(_told: ProgressEvent) -> None:
    pass
