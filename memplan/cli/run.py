"""`plan run`: a schedule executed and compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..graphs.units import duration, signed
from ..planner.budget import spelled
from ..report.traces.measured import measured
from ..report.traces.planned import planned
from .exits import CheckFailedError, OverPlanError
from .export_views import subject_of, trace_option, write_trace
from .help import PlanCommand
from .options import count_option, output_options
from .planned_step import planned_step, step_options
from .printing.figures import graph_row
from .printing.output import Output, Row, labelled
from .replay import Held, arena_of, open_schedule, validate_schedule

if TYPE_CHECKING:
    from ..planner.addresses.layout import Layout
    from ..profiling.compare.peaks import Peaks
    from ..profiling.compare.side_by_side import Measured, SideBySide

_OF_TRAINING = ("--steps", "--checkpoint", "--save-every")
"""Options of `plan train`."""


class _Run(PlanCommand):
    """The command, which names the one that has the options of training."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _OF_TRAINING:
                raise
            raise click.UsageError(
                "training is another command: plan train SCHEDULE --model MODEL.py --steps N "
                "--checkpoint FOLDER",
                ctx,
            ) from None


@click.command(cls=_Run)
@step_options
@count_option(
    "--timing-repeats",
    "repeats",
    "N",
    "Number of timing repetitions, planned and eager each.",
    default=5,
    show_default=True,
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
    cuda_graph: bool,
    trace_path: Path | None,
    output: Output,
) -> None:
    """Run SCHEDULE and eager PyTorch in turn: time, peak memory, and whether the results are equal.

    The model is retraced, with the optimizer that the graph was profiled with; its fingerprint must be
    the graph's. Exit code 5 where loss, gradients or buffers differ in any bit, or, where weights are
    updated, these or the optimizer's states after 3 iterations; where eager differs from run to run, by more
    than that; with compiled operations where they differ from the same without a plan, or kernels
    are further from exact than eager's own error explains; 1 where the run took more memory than planned.
    If eager PyTorch runs out of memory, only the schedule is run. `plan train` trains.

    \b
    plan run schedule.json --model model.py
    """
    held = open_schedule(schedule, graph_path, output)
    replay, layout = validate_schedule(held, schedule), arena_of(held, schedule)
    predicted = held.report(replay).predicted()
    from ..profiling.compare.cost import Cost, worse_in_both
    from ..profiling.compare.side_by_side import side_by_side, spans

    with planned_step(
        held, model, device=device, disk=disk, layout=layout, output=output, cuda_graph=cuda_graph
    ) as made:
        _file, iteration, step, live, compiled = made
        if step.journal.complete:  # in addition to the schedule's
            predicted = {**predicted, "host_peak": predicted["host_peak"] + step.journal.bytes}
        live.report("running eager and planned in turn")
        found = side_by_side(iteration, step, repeats, compiled, live.count)
        if trace_path is not None:
            live.report("timing each step")
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
    # Without what libraries keep (constant), and what belongs to no tensor of the plan (extra).
    device = peaks.device - peaks.extra - peaks.constant
    found = {"device peak": device, "host peak": peaks.host, "disk peak": peaks.disk}
    return {name: size for name, size in found.items() if size}


def _within_plan(predicted: dict[str, Any], peaks: Peaks) -> None:
    for place, peak, key in (
        ("device", peaks.device - peaks.extra - peaks.constant, "peak"),
        ("host", peaks.host, "host_peak"),
        ("disk", peaks.disk, "disk_peak"),
    ):
        # Exact, without a tolerance: plans promise bytes.
        if peak > predicted[key]:
            over = f"{peak:,} bytes on the {place}, {peak - predicted[key]:,} more than planned"
            raise OverPlanError(f"an internal error: the planned run took {over}")


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
        # z: what rounds to minus zero would print as -0.00%.
        f"measured peak {off:+z.2%}",
    )
    for place, peak in (("host", planned.peaks.host), ("disk", planned.peaks.disk)):
        if expected := predicted[f"{place}_peak"]:
            off = peak / expected - 1
            yield f"{place} peak", f"{spelled(peak)}, predicted {spelled(expected)}: {off:+z.2%}"
    if (reserved := planned.peaks.reserved) is not None:
        planned_arena = "" if layout is None else f", the arena planned for it {spelled(layout.size)}"
        yield "reserved", f"{spelled(reserved)} of the device{planned_arena}"
    yield "loss", f"{found.loss:.7g}"
    yield "results", str(found.comparison or "not compared: eager PyTorch runs out of memory")
