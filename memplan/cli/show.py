"""`plan show`: a schedule's figures, what it recomputes, where its peak is, its memory over time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
from rich.text import Text

from ..graphs.graph import Phase
from ..graphs.units import counted, format_bytes
from ..planner.addresses.lifetimes import lifetimes
from ..planner.budget import spelled
from ..planner.report import Report
from ..planner.schedule.schedule import Verb
from ..planner.simulator.simulate import Replay
from ..report.curves import table as curve_table
from ..report.picture import picture
from ..report.traces.planned import planned
from .export_views import subject_of, trace_option, write_trace, write_view
from .help import PlanCommand
from .next_command import next_rows
from .options import FILE, graph_option, output_options, writable_as
from .parameter_types import DOCUMENT
from .printing import breakdown
from .printing.curve import Mark, draw
from .printing.figures import (
    duration,
    graph_row,
    launch_rows,
    loop_row,
    minimum_document,
    minimum_rows,
    policy_row,
    report_document,
    report_rows,
)
from .printing.output import Output, labelled, table
from .profiling import pieces_rows
from .replay import Held, open_schedule, validate_schedule

_LISTED = 5


@click.command(cls=PlanCommand)
@click.argument("schedule", type=DOCUMENT)
@graph_option
@trace_option
@click.option(
    "--csv",
    "csv_path",
    type=FILE,
    callback=writable_as(".csv"),
    help="File for each memory's bytes by step, .csv.  [default: none]",
)
@click.option(
    "--svg",
    "svg_path",
    type=FILE,
    callback=writable_as(".svg"),
    help="File for a picture of memory and queues, .svg.  [default: none]",
)
@output_options
def show(
    schedule: Path,
    graph_path: Path | None,
    trace_path: Path | None,
    csv_path: Path | None,
    svg_path: Path | None,
    output: Output,
) -> None:
    """Show SCHEDULE: its figures, what it recomputes, the peak, and its memory curve.

    \b
    plan show schedule.json
    plan show schedule.json --trace out.pftrace --svg out.svg
    """
    held = open_schedule(schedule, graph_path, output)
    replay = validate_schedule(held, schedule)
    subject = subject_of(held, replay)
    report = subject.report
    if trace_path is not None:
        write_trace([planned(subject)], trace_path)
    if csv_path is not None:
        write_view(curve_table(subject).encode(), csv_path)
    if svg_path is not None:
        write_view(picture(subject).encode(), svg_path)
    graph, steps = held.graph, held.file.schedule
    rows = lifetimes(graph, steps, budget=held.budget, machine=held.machine)
    accounts = {
        **minimum_document(graph, held.machine),
        "steps": len(steps),
        "phases": breakdown.phases(graph, steps),
        "recomputed": breakdown.recomputed(graph, steps),
        "transfers": breakdown.transfers(graph, steps),
        **({"collectives": breakdown.collectives(graph, steps)} if graph.operations.comm else {}),
        "peak_at": breakdown.peak(graph, steps, rows) if len(steps) else None,
    }
    if output.as_json:
        curve = replay.device_curve.tolist()
        output.document({**report_document(report, held.budget), **accounts, "device_curve": curve})
    else:
        output.lines(_lines(held, report, accounts, output.width))
        output.lines(_picture(held, replay, output))
        output.lines(_next(held, schedule, report))


def _lines(held: Held, report: Report, accounts: dict[str, Any], width: int) -> Iterator[Text]:
    yield from labelled(
        [
            graph_row(held.graph),
            *pieces_rows(held.graph.source or {}),
            ("budget", "none" if held.budget is None else spelled(held.budget)),
            *policy_row(held.file.solver),
            *report_rows(report, held.budget, held.machine or held.graph.machine),
            *loop_row(held.loop),
            *minimum_rows(held.graph, held.machine),
            *launch_rows(held.graph, held.file.schedule),
        ]
    )
    yield Text("")
    rows = [
        [
            f"{row['operations']:,}",
            f"{row['runs']:,}",
            duration(row["time"]),
            duration(row["recompute_seconds"]),
        ]
        for row in accounts["phases"]
    ]
    words = [row["phase"] for row in accounts["phases"]]
    heads = ["operations", "runs", "time", "recomputed", "phase"]
    yield from table(heads, [[*row, word] for row, word in zip(rows, words, strict=True)])
    yield from _repeats(accounts["recomputed"])
    copied = accounts["transfers"]
    if any(copied[name]["steps"] for name in copied):
        yield Text("")
        for name, row in copied.items():
            number = counted(row["steps"], name.removesuffix("es" if name.endswith("ches") else "s"))
            yield Text(f"{number}, {spelled(row['bytes'])}")
    if found := accounts.get("collectives"):
        yield Text(f"{counted(found['steps'], 'collective')}, {duration(found['time'])} on the network")
    if accounts["peak_at"]:
        yield from _peak(accounts["peak_at"], width)


def _next(held: Held, schedule: Path, report: Report) -> Iterator[Text]:
    rows = [*next_rows(held, schedule, report.overhead)]
    if rows:
        yield Text("")
        yield from labelled(rows)


def _repeats(recomputed: list[dict[str, Any]]) -> Iterator[Text]:
    yield Text("")
    seconds = sum(float(row["recompute_seconds"]) for row in recomputed)
    number = counted(len(recomputed), "operation")
    yield Text(f"{number} recomputed, {duration(seconds)} in all", style="bold")
    listed = recomputed[:_LISTED]
    yield from table(
        [],
        [[f"×{row['runs']}", duration(row["recompute_seconds"]), row["operation"]] for row in listed],
        indent=2,
    )
    if len(recomputed) > _LISTED:
        yield Text(f"  … and {len(recomputed) - _LISTED:,} more")


def _peak(found: dict[str, Any], width: int) -> Iterator[Text]:
    yield Text("")
    yield Text(f"peak at step {found['step']:,}: {found['what']}", style="bold")
    parts = {**found["by_kind"], "workspace": found["other"]}
    sums = [f"{kind.replace('_', ' ')} {format_bytes(size)}" for kind, size in parts.items() if size]
    yield from map(Text, wrap(", ".join(sums), width, initial_indent="  ", subsequent_indent="  "))
    listed = found["tensors"][:_LISTED]
    yield from table([], [[format_bytes(t["bytes"]), t["kind"], t["tensor"]] for t in listed], indent=2)
    if len(found["tensors"]) > _LISTED:
        yield Text(f"  … and {len(found['tensors']) - _LISTED:,} more")


def _picture(held: Held, replay: Replay, output: Output) -> Iterator[Text]:
    """Yield the chart of memory over steps. Deletes are left out: no peak is at one."""
    shown = (held.file.schedule.verbs != Verb.DELETE).nonzero()[0]
    if len(shown):
        yield Text("")
        yield from draw(
            replay.device_curve[shown],
            held.budget,
            list(_marks(held, shown.tolist())),
            width=output.width,
            blocks=output.blocks,
        )


def _marks(held: Held, shown: list[int]) -> Iterator[Mark]:
    """Yield where each phase begins; the loss, a point among them, is left out."""
    schedule = held.file.schedule
    begun: set[Phase] = set()
    for place, step in enumerate(shown):
        if schedule.verbs[step] == Verb.COMPUTE:
            phase = Phase(int(held.graph.operations.phase[schedule.targets[step]]))
            # Only the first time: recomputation makes forward operations run in backward.
            if phase not in begun and phase != Phase.LOSS:
                begun.add(phase)
                yield place, phase.word
