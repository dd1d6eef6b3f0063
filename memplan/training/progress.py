"""Progress events of planning and training, and the callbacks that receive them."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TextIO, cast

from torch import Tensor

from ..graphs.errors import InputError
from ..graphs.units import duration, format_bytes

SECONDS_BETWEEN = 0.2
"""Seconds between two lines on a terminal. More frequent lines cost time: a loss waits for the device."""

PATIENCE = 2.0
"""Seconds of planning without a line."""

SECONDS_BETWEEN_LINES = 10.0
"""Seconds of planning between two lines if these stay, as in a file."""


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
        planned (tuple of int, default (0, 0)): planned peaks on the device and on the host, bytes: the whole
            loop's, with what is outside of the plan.
        used (tuple of int, default (None, 0)): measured peaks on the device and on the host so far, bytes,
            with what is outside of the plan. None if the device's allocator does not count, as on the CPU.
        rolled_back (int, default 0): number of iterations so far whose early updates were put back, and which
            ran twice.
    """

    phase: str
    done: int = 0
    total: int | None = None
    text: str = ""
    loss: Tensor | None = None
    seconds: float | None = None
    planned: tuple[int, int] = (0, 0)
    used: tuple[int | None, int] = (None, 0)
    rolled_back: int = 0

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
        if self.rolled_back:
            parts.append(f"{self.rolled_back:,} rolled back")
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


def progress_callback(progress: bool | Progress | None) -> Progress:
    """Return the callback for the option `progress`. Raise InputError for a value that can't be called.

    progress: None for a line about planning that takes long, True for a line on standard error about training
        too if that is a terminal, False for no report.
    """
    if progress is None:
        return PlanningLine()
    if isinstance(progress, bool):
        return Line() if progress and _is_terminal(sys.stderr) else _nothing
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
        if stays or event.phase != self._phase or monotonic() - self._last > SECONDS_BETWEEN:
            self._phase = event.phase
            _overwrite(sys.stderr, str(event), stays=stays)
            self._last = monotonic()


class PlanningLine:
    """Callback that reports a planning of more than `PATIENCE` seconds on standard error.

    On a terminal one line changes; elsewhere there is a line every ten seconds, of the first process of a
    distributed training. The last line stays: the seconds in all, and those of each phase. A thread writes
    the lines, as tracing and comparing report nothing until they have ended.
    """

    def __init__(self) -> None:
        self._seconds, self._event, self._begun = dict[str, float](), ProgressEvent(""), 0.0

    def __call__(self, event: ProgressEvent) -> None:
        if event.phase != "train":  # whose loss would be held
            self._event = event

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Report one phase of planning while it lasts."""
        if name == "trace":  # the first phase of each plan: one before it may have failed
            self._seconds = {}
        self._begun, ended = monotonic(), Event()
        stream = _shared_stderr()
        thread = Thread(target=self._report, args=(stream, ended), name="memplan progress", daemon=True)
        if stream is not None:
            thread.start()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + monotonic() - self._begun
            ended.set()
            if stream is not None:
                thread.join()

    def planned(self, result: str) -> None:
        """Write the last line of a planning. result: what was planned, in words."""
        total, stream = sum(self._seconds.values()), _shared_stderr()
        if total >= PATIENCE and stream is not None:
            phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self._seconds.items())
            text = f"planned in {duration(total)} ({phases}): {result}"
            if _is_terminal(stream):
                _overwrite(stream, text, stays=True)
            else:
                _write(stream, f"memplan: {text}\n")
        self._seconds = {}

    def _report(self, stream: TextIO, ended: Event) -> None:
        """Write lines until the phase has ended."""
        terminal = _is_terminal(stream)
        first, between = (PATIENCE, SECONDS_BETWEEN) if terminal else (SECONDS_BETWEEN_LINES,) * 2
        before = sum(self._seconds.values())
        # Elsewhere a line is due at each ten seconds of all phases together.
        wait = max(0.0, first - before) if terminal else between - before % between
        while not ended.wait(wait):
            text = f"planning for {duration(before + monotonic() - self._begun)}: {self._event}"
            if terminal:
                _overwrite(stream, text, stays=False)
            else:
                _write(stream, f"memplan: {text}\n")
            wait = between


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except Exception:  # closed, or an object of the script's own
        return False


def _write(stream: TextIO | None, text: str) -> None:
    """Write a text, not by `print`, which scripts replace. A stream that refuses does not end a training."""
    if stream is not None:
        with suppress(Exception):
            stream.write(text)
            stream.flush()


def _overwrite(stream: TextIO | None, text: str, *, stays: bool) -> None:
    """Write a line over the one before. stays: the next one does not overwrite it."""
    line = "".join(letter for letter in text if letter.isprintable())
    line, end = (line, "\n") if stays else (line[:110], "")
    _write(stream, f"\r\x1b[2Kmemplan: {line}{end}")


def _shared_stderr() -> TextIO | None:
    """Return standard error; None if there is none, or if another process of the training writes to it."""
    return None if os.environ.get("RANK", "0") != "0" else cast("TextIO | None", sys.stderr)


def _nothing(_told: ProgressEvent) -> None:
    pass
