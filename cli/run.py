"""`plan run`: a schedule executed and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..graphs.errors import InputError, MismatchError
from ..graphs.graph import Graph
from ..graphs.units import duration
from ..planner.budget import spelled
from ..report.traces.measured import measured
from ..report.traces.planned import planned
from .exits import CheckFailedError, OverPlanError
from .export_views import subject_of, trace_option, write_trace
from .models import model_code
from .options import FILE, graph_option, output_options
from .printing.figures import graph_row, signed
from .printing.output import Output, Row, labelled
from .replay import Held, arena_of, open_schedule, validate_schedule

if TYPE_CHECKING:
    from ..planner.addresses.layout import Layout
    from ..runtime.compare.compiled import Compiled
    from ..runtime.compare.peaks import Peaks
    from ..runtime.compare.side_by_side import Measured, SideBySide
    from ..runtime.fusion.fused import Fused
    from ..runtime.model.file import ModelFile
    from ..runtime.model.iteration import Iteration
    from ..runtime.program.program import Program
    from ..runtime.run.execute import PlannedStep


@click.command()
@click.argument("schedule", type=FILE)
@graph_option
@click.option("--model", metavar="MODEL.py[:ENTRY]", help="File of the model; it is run.", required=True)
@click.option(
    "--device", metavar="cpu|cuda", help="Device to run on.  [default: where the graph was profiled]"
)
@click.option(
    "--disk",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder for what is offloaded to the disk.  [default: where temporary files are]",
)
@click.option(
    "--timing-repeats",
    "repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of timing repetitions, planned and eager each.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of iterations to train, in all.  [default: no training]",
)
@click.option(
    "--checkpoint",
    type=FILE,
    metavar="FOLDER",
    help="Folder in which a training run is saved, and from which it resumes.  [default: none]",
)
@click.option(
    "--save-every",
    "every",
    type=click.IntRange(min=1),
    metavar="K",
    help="Number of iterations between checkpoints.  [default: 10 minutes]",
)
@click.option(
    "--cuda-graph",
    "cuda_graph",
    is_flag=True,
    help="Replay the iteration as a CUDA graph: for schedules without transfers, with updates in them.",
)
@trace_option
@output_options
def run(
    schedule: Path,
    graph_path: Path | None,
    model: str,
    device: str | None,
    disk: Path | None,
    repeats: int,
    steps: int | None,
    checkpoint: Path | None,
    every: int | None,
    cuda_graph: bool,
    trace_path: Path | None,
    output: Output,
) -> None:
    """Run SCHEDULE and eager PyTorch in turn: time, peak memory, and whether the results are equal.

    The model is traced again, with the optimizer that the graph was profiled with; its fingerprint must be
    the graph's. Exit code 5 where loss, gradients or buffers differ in any bit, or, where weights are
    updated, these or the optimizer's states after 3 iterations; where eager differs from run to run, by more
    than that; with compiled operations where they differ from the same without a plan, or kernels
    are further from exact than eager's own error explains; 1 where the run took more memory than planned.
    If eager PyTorch runs out of memory, only the schedule is run.

    With --steps it trains instead, on the batches of the file's `data()`, and goes on from the checkpoint
    where there is one.

    \b
    plan run schedule.json --model model.py
    plan run schedule.json --model model.py --steps 1000 --checkpoint run
    """
    if (steps is None) != (checkpoint is None) or (every is not None and steps is None):
        raise click.UsageError("--steps N and --checkpoint FOLDER go together, --save-every K with both")
    if steps is not None and trace_path is not None:
        raise click.UsageError("--trace shows a run and eager PyTorch: leave --steps out")
    held = open_schedule(schedule, graph_path, output)
    replay, layout = validate_schedule(held, schedule), arena_of(held, schedule)
    predicted = held.report(replay).predicted()
    if steps is not None and checkpoint is not None:
        from .train import trained

        with _planned(held, model, device, disk, layout, output, cuda_graph=cuda_graph) as made:
            document, rows = trained(*made[:4], steps, checkpoint, every, predicted, output)
        output.result({"predicted": predicted, **document}, labelled([graph_row(held.graph), *rows]))
        return
    from ..runtime.compare.cost import Cost, worse_in_both
    from ..runtime.compare.side_by_side import side_by_side, spans

    with _planned(held, model, device, disk, layout, output, cuda_graph=cuda_graph) as (
        _file,
        iteration,
        step,
        say,
        compiled,
    ):
        say("running eager and planned in turn")
        found = side_by_side(iteration, step, repeats, compiled)
        if trace_path is not None:
            say("timing each step")
            subject, peaks = subject_of(held, replay), _peaks(found.planned.peaks)
            write_trace([planned(subject), measured(subject, spans(iteration, step), peaks)], trace_path)
    if found.eager is not None:
        eager = Cost(found.eager.peak_bytes, found.eager.seconds)
        if line := worse_in_both(found.planned.peak_bytes, found.planned.seconds, eager):
            output.note(f"warning: {line}")
    output.result(
        {
            "predicted": predicted,
            "measured": {**_figures(found.planned), "loss": found.loss if isfinite(found.loss) else None},
            "eager": found.eager and _figures(found.eager),
            "equal": found.comparison and found.comparison.equal,
            "first_difference": found.comparison and found.comparison.first,
            "eager_differs": dict(found.comparison.spreads) if found.comparison else None,
            "budget": held.budget,
        },
        labelled(_rows(held, predicted, found, layout)),
    )
    if found.comparison and not found.comparison.equal:
        raise CheckFailedError(f"{schedule}: the planned run differs from eager: {found.comparison}")
    _within_plan(predicted, found.planned.peaks)


def _peaks(peaks: Peaks) -> dict[str, int]:
    """Return the measured peaks. The device's is of the plan's tensors alone, as the simulator counts."""
    device = peaks.device - peaks.extra - peaks.constant
    found = {"device peak": device, "host peak": peaks.host, "disk peak": peaks.disk}
    return {name: size for name, size in found.items() if size}


def _within_plan(predicted: dict[str, Any], peaks: Peaks) -> None:
    for place, peak, key in (
        ("device", peaks.device - peaks.extra - peaks.constant, "peak"),
        ("host", peaks.host, "host_peak"),
        ("disk", peaks.disk, "disk_peak"),
    ):
        if peak > predicted[key]:
            over = f"{peak:,} bytes on the {place}, {peak - predicted[key]:,} more than planned"
            raise OverPlanError(f"an internal error: the planned run took {over}")


@contextmanager
def _planned(
    held: Held,
    model: str,
    device: str | None,
    disk: Path | None,
    layout: Layout | None,
    output: Output,
    *,
    cuda_graph: bool,
) -> Generator[tuple[ModelFile, Iteration, PlannedStep, Callable[[str], None], Compiled | None]]:
    """Build the model and its planned step; the model's code may run in the block.

    Yields the file, the iteration that it builds, the step, a function that shows a line on the terminal, and
    the reference for the step's compiled operations.
    """
    from ..runtime.compare.compiled import Compiled
    from ..runtime.device.choice import check_device, device_of
    from ..runtime.fusion.choice import COMPILED
    from ..runtime.model.file import load_model_file
    from ..runtime.model.iteration import on_device
    from ..runtime.run.cycle import Terms
    from ..runtime.run.execute import PlannedStep
    from ..runtime.trace.output_layouts import trace_real_layouts
    from ..runtime.updates.choice import choice_of, updated

    graph_path = held.graph_path
    if device is not None:
        check_device(device)
    device = _device(held.graph, graph_path, device)
    check_device(device)
    with model_code(model, device), output.status("tracing") as say:
        chosen = held.graph.source.get("optimizer")
        file = load_model_file(model)
        iteration = on_device(file.build(), device)
        iteration = updated(iteration, None if chosen is None else choice_of(chosen))
        program = trace_real_layouts(iteration)
        where = device_of(program.device)
        _same_model(held.graph, graph_path, program.fingerprint, model, where.capability())
        if line := _other_card(held.graph, where.surroundings()):
            output.note(line)
        if COMPILED in held.graph.source:
            say("compiling operations")
        made = _aligned(program, held.graph, graph_path)
        compiled = Compiled(program, made.kernels) if made.kernels else None
        terms = Terms(held.graph, held.budget, held.machine, disk, layout=layout)
        step = PlannedStep(iteration, made.program, held.file.schedule, terms, cuda_graph=cuda_graph)
        yield file, iteration, step, say, compiled


def _device(graph: Graph, graph_path: Path, wanted: str | None) -> str:
    """Return the device to run on. A graph holds for the kind of device it was traced on."""
    if not graph.source.get("fingerprint"):
        raise InputError(f"{graph_path} has no fingerprint: it was not made by `plan profile`")
    traced = str(graph.source.get("device", "cpu"))
    device = wanted or traced
    if device.partition(":")[0] != traced.partition(":")[0]:
        made = f"was estimated for {gpu}" if (gpu := _estimated_for(graph)) else f"was traced on {traced}"
        raise MismatchError(f"{graph_path} {made}, not on {device}: profile the model there")
    return device


def _estimated_for(graph: Graph) -> str | None:
    """Return the name of the GPU that an estimate is for."""
    return _known(graph).get("gpu")


def _known(graph: Graph) -> dict[str, Any]:
    """Return what the graph says of its GPU: in the estimate, or in the profile."""
    estimated: Any = graph.source.get("estimate")
    return dict(estimated if isinstance(estimated, dict) else graph.source)  # pyright: ignore[reportUnknownArgumentType]


def _same_model(graph: Graph, graph_path: Path, fingerprint: str, model: str, capability: str | None) -> None:
    """Raise MismatchError if the graph is not of this trace.

    capability: compute capability of the device, by which PyTorch chooses operations; None without one.
    """
    import torch

    expected = str(graph.source["fingerprint"])
    if expected == fingerprint:
        return
    made_for = _known(graph).get("capability")
    if made_for is not None and capability is not None and str(made_for) != capability:
        raise MismatchError(
            f"{graph_path} has the operations of compute capability {made_for}, this GPU has {capability} "
            "and runs others: profile the model here"
        )
    then = graph.source.get("torch")
    versions = f" (torch was {then} then and is {torch.__version__} now)" if then != torch.__version__ else ""
    raise MismatchError(
        f"{model} is not the model that {graph_path} was profiled from: its fingerprint is "
        f"{_short(fingerprint)}, the graph's {_short(expected)}{versions}"
    )


def _other_card(graph: Graph, here: dict[str, Any]) -> str | None:
    """Return a line for the user if the graph's times are of another card, driver, or flags of PyTorch.

    Results are right nevertheless: the operations are those of the trace made here.
    """
    from ..runtime.device.card import differences

    measured: Any = graph.source.get("card")
    found = differences(measured, here) if isinstance(measured, dict) else None  # pyright: ignore[reportUnknownArgumentType]
    return found and f"warning: the graph was measured with {found}: times may differ from those planned"


def _aligned(program: Program, graph: Graph, graph_path: Path) -> Fused:
    from ..runtime.fusion.choice import as_in
    from ..runtime.trace.align import aligned

    try:
        made = as_in(graph, program)
        return made._replace(program=aligned(made.program, graph))
    except MismatchError as error:
        raise MismatchError(f"{graph_path}: {error}") from None


def _short(fingerprint: str) -> str:
    return f"{fingerprint.removeprefix('sha256:')[:12]}…"


def _figures(measured: Measured) -> dict[str, Any]:
    peaks = measured.peaks
    return {
        "time": measured.seconds,
        "peak": peaks.device,
        "host_peak": peaks.host,
        "disk_peak": peaks.disk,
        "reserved": peaks.reserved,
    }


def _rows(held: Held, predicted: dict[str, Any], found: SideBySide, layout: Layout | None) -> Iterator[Row]:
    eager, planned = found.eager, found.planned
    yield graph_row(held.graph)
    if held.budget is not None:
        yield "budget", spelled(held.budget)
    if eager is not None:
        yield "eager", f"{duration(eager.seconds)}, peak {spelled(eager.peak_bytes)}"
    yield "planned", f"{duration(planned.seconds)}, peak {spelled(planned.peak_bytes)}"
    if eager is not None:
        faster, smaller = planned.seconds / eager.seconds - 1, planned.peak_bytes / eager.peak_bytes - 1
        yield "against eager", f"time {signed(faster)}, peak {signed(smaller)}"
    constant = planned.peaks.constant
    off = planned.peak_bytes / (predicted["peak"] + constant) - 1
    extra = f" and {spelled(constant)} that libraries keep" if constant else ""
    yield (
        "predicted",
        f"{duration(predicted['time'])}, peak {spelled(predicted['peak'])}{extra}: "
        f"measured peak {off + 0.0:+.2%}",
    )
    for place, peak in (("host", planned.peaks.host), ("disk", planned.peaks.disk)):
        if expected := predicted[f"{place}_peak"]:
            off = peak / expected - 1
            yield f"{place} peak", f"{spelled(peak)}, predicted {spelled(expected)}: {off + 0.0:+.2%}"
    if (reserved := planned.peaks.reserved) is not None:
        planned_arena = "" if layout is None else f", the arena planned for it {spelled(layout.size)}"
        yield "reserved", f"{spelled(reserved)} of the device{planned_arena}"
    yield "loss", f"{found.loss:.7g}"
    yield "results", str(found.comparison or "not compared: eager PyTorch runs out of memory")
