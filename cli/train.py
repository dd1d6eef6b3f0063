"""`plan run --steps`: a schedule trains the model of a file, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..graphs.units import duration
from ..planner.budget import spelled
from .printing.figures import signed
from .printing.output import Output, Row

if TYPE_CHECKING:
    from ..runtime.model.file import ModelFile
    from ..runtime.model.iteration import Inputs, Iteration
    from ..runtime.run.execute import PlannedStep
    from ..training.loop import Trained

_SECONDS_BETWEEN_LINES = 10.0
"""Minimum seconds between lines if there is no terminal."""


def trained(
    file: ModelFile,
    iteration: Iteration,
    step: PlannedStep,
    say: Callable[[str], None],
    steps: int,
    folder: Path,
    every: int | None,
    predicted: dict[str, Any],
    output: Output,
) -> tuple[dict[str, Any], list[Row]]:
    """Train, and return what `--json` prints and the rows for people. predicted: the schedule's figures."""
    from ..training.batches import Batches
    from ..training.loop import train

    reporter = _Lines(steps, say, output, predicted)
    batches = Batches(lambda: _on_device(file.epoch(iteration.inputs), step))
    found = train(iteration, step, batches, steps, folder, every, reporter)
    seconds = median(found.seconds) if found.seconds else None
    losses = [loss if isfinite(loss) else None for loss in found.losses]
    document = {"steps": len(losses), "resumed": found.before, "time": seconds, "losses": losses}
    return {**document, "checkpoint": str(folder)}, list(_rows(found, seconds, predicted, folder))


class _Lines:
    """Progress of training: on a terminal one line that is replaced, else a line now and then."""

    def __init__(
        self, steps: int, say: Callable[[str], None], output: Output, predicted: dict[str, Any]
    ) -> None:
        self._steps, self._say, self._output = steps, say, output
        host = predicted.get("host_peak") or 0
        self._plan = f"device {spelled(predicted['peak'])}" + (f", host {spelled(host)}" if host else "")
        self._last = monotonic()

    def __call__(self, so_far: Trained, saved: bool) -> None:
        number = so_far.before + len(so_far.seconds)
        rate = 1.0 / max(1e-9, median(so_far.seconds[-50:]))
        loss = f", loss {so_far.losses[-1]:.6g}" if so_far.losses else ""
        line = f"iteration {number} of {self._steps}{loss}, {rate:.3g} a second"
        self._say(f"{line}; planned {self._plan}")
        if saved and monotonic() - self._last > _SECONDS_BETWEEN_LINES and not self._output.on_terminal:
            self._output.note(f"{line}; saved")
            self._last = monotonic()


def _on_device(batches: Iterator[Inputs], step: PlannedStep) -> Iterator[Inputs]:
    from ..runtime.model.iteration import tensors_in, with_tensors

    for inputs in batches:
        tensors = {name: tensor.to(step.device.torch) for name, tensor in tensors_in(inputs).items()}
        yield with_tensors(inputs, tensors)


def _rows(found: Trained, seconds: float | None, predicted: dict[str, Any], folder: Path) -> Iterator[Row]:
    resumed = f", {found.before} of them before" if found.before else ""
    yield "trained", f"{len(found.losses)} iterations{resumed}"
    if found.losses:
        yield "loss", f"{found.losses[0]:.7g} → {found.losses[-1]:.7g}"
    if seconds is not None:
        off = signed(seconds / predicted["time"] - 1)
        yield "an iteration", f"{duration(seconds)}, predicted {duration(predicted['time'])}: {off}"
    yield "checkpoint", str(folder)
