"""`plan train`: a schedule trains the model of a file, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from ..graphs.units import duration, signed
from ..planner.budget import spelled
from .help import PlanCommand
from .options import FILE, count_option, output_options
from .planned_step import Planned, planned_step, step_options
from .printing.figures import graph_row
from .printing.live import Live
from .printing.output import Output, Row, labelled
from .replay import arena_of, open_schedule, validate_schedule

if TYPE_CHECKING:
    from ..model.iteration import Inputs
    from ..steps.execute import PlannedStep
    from ..training.loop import Trained


@click.command(cls=PlanCommand)
@step_options
@count_option("--steps", "steps", "N", "Number of iterations to train, in all.", required=True)
@click.option(
    "--checkpoint",
    type=FILE,
    metavar="FOLDER",
    required=True,
    help="Folder in which the training is saved, and from which it resumes.",
)
@count_option(
    "--save-every", "every", "K", "Number of iterations between checkpoints.  [default: 10 minutes]"
)
@output_options
def train(
    schedule: Path,
    graph_path: Path | None,
    model: str,
    device: str | None,
    disk: Path | None,
    cuda_graph: bool,
    steps: int,
    checkpoint: Path,
    every: int | None,
    output: Output,
) -> None:
    """Train the model of a file by SCHEDULE, which updates its weights, and save checkpoints.

    Batches are those of the file's `data()`, or its example batch if it has none. If there is a checkpoint,
    training continues from it: the same command goes on after Ctrl-C or a crash, or with a larger --steps,
    with the same losses bit by bit.

    \b
    plan profile model.py --optimizer adamw -o graph.yaml
    plan solve graph.yaml --budget 12GB -o schedule.json
    plan train schedule.json --model model.py --steps 1000 --checkpoint run
    """
    held = open_schedule(schedule, graph_path, output)
    replay, layout = validate_schedule(held, schedule), arena_of(held, schedule)
    predicted = held.report(replay).predicted()
    with planned_step(
        held, model, device=device, disk=disk, layout=layout, output=output, cuda_graph=cuda_graph
    ) as made:
        document, rows = _trained(
            made, steps, folder=checkpoint, every=every, predicted=predicted, output=output
        )
    output.result({"predicted": predicted, **document}, labelled([graph_row(held.graph), *rows]))


def _trained(
    made: Planned, steps: int, folder: Path, every: int | None, predicted: dict[str, Any], output: Output
) -> tuple[dict[str, Any], list[Row]]:
    """Train, and return what `--json` prints and the rows for people. predicted: the schedule's figures."""
    from ..training.batches import Batches
    from ..training.loop import train

    reporter = _Lines(steps, made.live, predicted)
    made.live.report("training")
    batches = Batches(lambda: _on_device(made.file.epoch(made.iteration.inputs), made.step))
    if made.file.data is None:
        output.note(f"{made.file.path} has no data(): each iteration trains on the example batch")
    try:
        found = train(
            made.iteration,
            made.step,
            batches=batches,
            steps=steps,
            folder=folder,
            every=every,
            tell=reporter,
        )
    except KeyboardInterrupt:
        output.note(f"{reporter.saved_line(folder)}; the same command goes on from there")
        raise
    seconds = median(found.seconds) if found.seconds else None
    # JSON has no NaN.
    losses = [loss if isfinite(loss) else None for loss in found.losses]
    document = {"steps": len(losses), "resumed": found.before, "time": seconds, "losses": losses}
    if made.step.early:
        document["rolled_back"] = found.rolled_back
    return {**document, "checkpoint": str(folder)}, list(_rows(found, seconds, predicted, folder))


class _Lines:
    """Progress of training, in the line that is shown."""

    def __init__(self, steps: int, live: Live, predicted: dict[str, Any]) -> None:
        self._steps, self._live = steps, live
        host = predicted.get("host_peak") or 0
        self._plan = f"device {spelled(predicted['peak'])}" + (f", host {spelled(host)}" if host else "")
        self._saved: int | None = None

    def saved_line(self, folder: Path) -> str:
        """Say which checkpoint there is."""
        if self._saved is None:
            return f"{folder} has the checkpoint with which this began"
        return f"{folder} has the checkpoint of iteration {self._saved:,}"

    def __call__(self, so_far: Trained, saved: bool) -> None:
        number = so_far.before + len(so_far.seconds)
        self._saved = number if saved else self._saved
        # The last ones: first iterations compile kernels and fill caches.
        rate = 1.0 / max(1e-9, median(so_far.seconds[-50:]))
        parts = [f"loss {so_far.losses[-1]:.6g}"] if so_far.losses else []
        parts += [f"{rate:.3g} a second", f"planned {self._plan}"]
        parts += [] if self._saved is None else [f"saved at iteration {self._saved:,}"]
        self._live.announce(", ".join(parts))
        self._live.count(number, self._steps)


def _on_device(batches: Iterator[Inputs], step: PlannedStep) -> Iterator[Inputs]:
    from ..model.iteration import tensors_in, with_tensors

    for inputs in batches:
        tensors = {name: tensor.to(step.device.torch) for name, tensor in tensors_in(inputs).items()}
        yield with_tensors(inputs, tensors)


def _rows(found: Trained, seconds: float | None, predicted: dict[str, Any], folder: Path) -> Iterator[Row]:
    resumed = f", {found.before} of them before" if found.before else ""
    yield "trained", f"{len(found.losses)} iterations{resumed}"
    if found.losses:
        yield "loss", f"{found.losses[0]:.7g} → {found.losses[-1]:.7g}"
    if found.rolled_back:
        share = found.rolled_back / len(found.seconds)
        yield "rolled back", f"{found.rolled_back:,} iterations ran twice ({share:.0%}): their norm exceeded"
    if seconds is not None:
        off = signed(seconds / predicted["time"] - 1)
        yield "an iteration", f"{duration(seconds)}, predicted {duration(predicted['time'])}: {off}"
    yield "checkpoint", str(folder)
