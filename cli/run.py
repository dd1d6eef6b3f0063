"""`plan run`: a schedule executed beside eager PyTorch."""

from __future__ import annotations

from pathlib import Path

import click

from ..graphs.errors import InputError, MismatchError
from ..graphs.graph import Graph
from ..planner.budget import spelled
from .exits import CheckFailedError
from .figures import duration, graph_row, signed
from .options import FILE, graph_option, output_options
from .output import Output, labelled
from .replay import judged, open_schedule


@click.command()
@click.argument("schedule", type=FILE)
@graph_option
@click.option("--model", metavar="MODEL.py[:ENTRY]", help="The model's file; it is run.", required=True)
@click.option("--device", metavar="cpu|cuda", help="Where to run; by default where the graph was profiled.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Timed runs of each."
)
@output_options
def run(
    schedule: Path, graph_path: Path, model: str, device: str | None, repeats: int, output: Output
) -> None:
    """Run SCHEDULE and eager PyTorch in turn: time, peak memory, and whether the results are equal.

    The model is traced again; its fingerprint must be the graph's. Exit code 5 where loss, gradients or
    buffers differ in any bit.
    """
    held = open_schedule(schedule, graph_path)
    predicted = held.report(judged(held, schedule)).predicted()
    device = device or str(held.graph.source.get("device", "cpu"))

    from ..runtime.execute import PlannedStep
    from ..runtime.iteration import on_device
    from ..runtime.model_file import load_model_file
    from ..runtime.side_by_side import side_by_side
    from ..runtime.trace import trace

    with output.status("tracing") as say:
        iteration = on_device(load_model_file(model).build(), device)
        program = trace(iteration)
        _same_model(held.graph, graph_path, program.fingerprint, model)
        say("running")
        found = side_by_side(iteration, PlannedStep(iteration, program, held.file.schedule), repeats)
    ratio = found.planned.seconds / found.eager.seconds - 1
    less = found.planned.peak_bytes / found.eager.peak_bytes - 1
    off = found.planned.peak_bytes / predicted["peak"] - 1
    output.result(
        {
            "predicted": predicted,
            "measured": {"time": found.planned.seconds, "peak": found.planned.peak_bytes, "loss": found.loss},
            "eager": {"time": found.eager.seconds, "peak": found.eager.peak_bytes},
            "equal": found.comparison.equal,
        },
        labelled(
            [
                graph_row(held.graph),
                ("eager", f"{duration(found.eager.seconds)}, peak {spelled(found.eager.peak_bytes)}"),
                ("planned", f"{duration(found.planned.seconds)}, peak {spelled(found.planned.peak_bytes)}"),
                ("against eager", f"time {signed(ratio)}, peak {signed(less)}"),
                (
                    "predicted",
                    f"{duration(predicted['time'])}, peak {spelled(predicted['peak'])}: measured {off:+.2%}",
                ),
                ("loss", f"{found.loss:.7g}"),
                ("results", str(found.comparison)),
            ]
        ),
    )
    if not found.comparison.equal:
        raise CheckFailedError(f"{schedule}: the planned run differs from eager: {found.comparison}")


def _same_model(graph: Graph, graph_path: Path, fingerprint: str, model: str) -> None:
    expected = graph.source.get("fingerprint")
    if not expected:
        raise InputError(f"{graph_path} has no fingerprint: it was not made by `plan profile`")
    if expected != fingerprint:
        raise MismatchError(
            f"{model} is not the model that {graph_path} was profiled from: its fingerprint is "
            f"{_short(fingerprint)}, the graph's {_short(str(expected))}"
        )


def _short(fingerprint: str) -> str:
    return f"{fingerprint.removeprefix('sha256:')[:12]}…"
