"""What a step is at, while it plans and while it trains: told to whoever asked."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import cast

from torch import Tensor

from ..graphs.errors import InputError
from ..graphs.units import format_bytes

_SECONDS_BETWEEN = 0.2
"""Between two lines on a terminal: what is told more often costs time, a loss a wait for the device."""


@dataclass(frozen=True)
class Told:
    """phase: trace, measure, solve, compare or train. done: of `total` operations that are measured, or
    iterations. text: the solver's line. loss: of the last iteration; to read it waits for the device.
    seconds: of an iteration. planned: bytes on the device, and on the host."""

    phase: str
    done: int = 0
    total: int | None = None
    text: str = ""
    loss: Tensor | None = None
    seconds: float | None = None
    planned: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        parts = [self.phase]
        if self.done:
            parts.append(f"{self.done:,}" + (f" of {self.total:,}" if self.total else ""))
        if self.loss is not None:
            parts.append(f"loss {self.loss.item():.6g}")
        if self.seconds:
            parts.append(f"{1 / self.seconds:.3g} a second")
        if self.planned[0]:
            device, host = self.planned
            parts.append(f"device {format_bytes(device)}" + (f", host {format_bytes(host)}" if host else ""))
        return ", ".join([*parts, self.text] if self.text else parts)


Progress = Callable[[Told], None]


def given_progress(progress: bool | Progress) -> Progress:
    """True: a line on standard error, where that is a terminal. Raises InputError."""
    if isinstance(progress, bool):
        return Line() if progress and sys.stderr is not None and sys.stderr.isatty() else _nothing
    if not callable(cast(object, progress)):
        raise InputError(f"progress={progress!r}: give a function that is told, True or False")
    return progress


class Line:
    """Written over and over; a line feed when a phase ends in another one's."""

    def __init__(self) -> None:
        self._last, self._phase = 0.0, ""

    def __call__(self, told: Told) -> None:
        if told.phase != self._phase or monotonic() - self._last > _SECONDS_BETWEEN:
            self._phase = told.phase
            line = "".join(letter for letter in str(told) if letter.isprintable())[:110]
            print(f"\r\x1b[2Kmemplan: {line}", end="", file=sys.stderr, flush=True)
            self._last = monotonic()


def _nothing(_told: Told) -> None:
    pass
