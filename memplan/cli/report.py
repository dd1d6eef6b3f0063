"""`plan report`: a schedule as one page to look at."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..comparison.file import read_rows
from ..graphs.cells import cell_text
from ..graphs.errors import InputError
from ..graphs.files.documents import read_document, regular_size
from ..planner.budget import spelled
from ..report.facts import Document, facts
from ..report.origin import made
from ..report.page import page
from ..report.subject import Subject
from .export_views import subject_of, write_view
from .help import PlanCommand
from .next_command import next_rows
from .options import FILE, bound_time_option, graph_option, output_options, writable_as
from .parameter_types import DOCUMENT
from .printing.figures import policy_row, report_document
from .printing.output import Output
from .printing.output_files import destination_of, write_out
from .replay import Held, is_graph, is_number, open_baseline, open_schedule, validate_schedule

PRICE_SECONDS = 5.0
"""Time, at most, for each of the two lower bounds of the price of memory, unless another is given."""


@click.command(cls=PlanCommand)
@click.argument("schedule", type=DOCUMENT)
@graph_option
@click.option(
    "--bench",
    "table",
    type=FILE,
    help="Table of plan bench or pareto, .csv, for a curve of time against budget.  [default: none]",
)
@click.option(
    "--run",
    "measured",
    type=FILE,
    help="Output of plan run --json, for planned and measured figures.  [default: none]",
)
@bound_time_option(
    "Time, at most, for each of two lower bounds that price more memory; 0 for none.", PRICE_SECONDS
)
@click.option(
    "-o",
    "--output",
    "destination",
    type=FILE,
    callback=writable_as(".html"),
    help="File to write, .html.  [default: SCHEDULE.report.html in the working folder]",
)
@output_options
def report(
    schedule: Path,
    graph_path: Path | None,
    table: Path | None,
    measured: Path | None,
    bound_time: float,
    destination: Path | None,
    output: Output,
) -> None:
    """Write SCHEDULE as one page for a browser: verdict, memory over time, queues, tensors, modules.

    It needs no network and no other file. Of a graph, or of an imported snapshot, it shows the baseline.

    \b
    plan report schedule.json
    """
    to = destination_of(destination, schedule, ".report.html")
    of_graph = graph_path is None and is_graph(schedule)
    held = open_baseline(schedule, output) if of_graph else open_schedule(schedule, graph_path, output)
    subject = subject_of(held, validate_schedule(held, schedule))
    of_file = None if of_graph else schedule
    data = page_of(held, subject, bound_time, table, measured, schedule=of_file)
    written = write_out(to, partial(write_view, data))
    output.result(
        {**report_document(subject.report, held.budget), "report": written.name, "bytes": len(data)},
        [Text(f"{line}: {spelled(len(data))}") for _label, line in written.row()],
    )
    written.tell()


def page_of(
    held: Held,
    subject: Subject,
    bound_seconds: float,
    table: Path | None = None,
    measured: Path | None = None,
    *,
    schedule: Path | None,
) -> bytes:
    """Return the page of a schedule.

    table, measured: files of --bench and --run. schedule: its file, None for a baseline without one.
    """
    following = () if schedule is None else next_rows(held, schedule, subject.report.overhead)
    document = {
        **facts(subject, bound_seconds),
        "title": held.graph.name,
        "origin": _origin(held),
        "next": [*following],
        "bench": None if table is None else _points(table, held),
        "run": None if measured is None else _run(measured),
    }
    return page(document, f"{held.graph.name}: memplan").encode()


def _origin(held: Held) -> list[str]:
    """Return how the page was made and what it shows, a line each."""
    solver = held.file.solver
    options = ", ".join(f"{key} {value}" for key, value in dict(solver.get("options") or {}).items())
    source = held.graph.source or {}
    versions = [f"{name} {source[name]}" for name in ("torch", "device") if source.get(name)]
    return [
        *made(sys.argv[1:]),
        f"graph {held.graph.name}, sha256 {held.file.graph_sha256.removeprefix('sha256:')}",
        *([f"solver {solver['name']}" + (f" ({options})" if options else "")] if solver.get("name") else []),
        *(" ".join(row) for row in policy_row(solver)),
        *([f"in its training loop: peak {held.loop}"] if held.loop else []),
        *([f"profiled with {', '.join(versions)}"] if versions else []),
    ]


def _points(table: Path, held: Held) -> list[Document]:
    """Return the rows of this graph with a schedule. Raises InputError if there are none."""
    regular_size(table)
    # Names in the table are escaped against formulas of spreadsheets.
    name = cell_text(held.graph.name)
    rows = [row for row in read_rows(table).values() if row.graph == name and row.time is not None]
    if not rows:
        raise InputError(f"{table}: has no schedule of {held.graph.name}")
    return [
        {"solver": row.solver, "budget": row.budget, "time": row.time, "bound": row.lower_bound}
        for row in rows
    ]


def _run(path: Path) -> Document:
    """Return the figures predicted, measured, and of eager PyTorch. Raises InputError."""
    document: Any = read_document(path)
    try:
        found = {who: document[who] for who in ("predicted", "measured", "eager") if document.get(who)}
        figures = {
            who: {
                name: row[name]
                for name in ("time", "peak", "host_peak", "disk_peak")
                if is_number(row.get(name))
            }
            for who, row in found.items()
        }
        # `eager` is missing if it ran out of memory.
        if {"predicted", "measured"} <= figures.keys():
            return figures
    except (AttributeError, KeyError, TypeError):
        pass
    raise InputError(f"{path}: is not what plan run --json prints")
