"""`plan optimize`: a model file profiled, planned and reported by one command."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ..graphs.files.files import save_graph
from ..graphs.graph import Graph
from ..solvers.incumbent import Incumbent
from ..solvers.problem import InfeasibleError
from .exits import Exit
from .export_views import subject_of, write_view
from .help import PlanCommand
from .in_pieces import advise_pieces, solve_in_pieces
from .measured_before import graph_measured_before
from .next_command import next_rows
from .options import FILE, chosen_machine, folder_argument, output_options
from .phases import Phases
from .printing.figures import made_rows
from .printing.output import Output, Row, labelled
from .printing.output_files import destination_of, write_out
from .profiling import Measurement, in_pieces, make_graph, measurement_options, pieces_rows
from .replay import open_schedule, validate_schedule
from .report import PRICE_SECONDS, page_of
from .solving import Found, Search, refusal_document, search_options, solve_graph

_PHASES = 3
"""Measuring, solving, reporting."""


@click.command(cls=PlanCommand)
@click.argument("model", metavar="MODEL.py[:ENTRY]")
@search_options(budget="the capacity of --gpu or --machine", machine="that of --gpu")
@measurement_options
@click.option("--split", is_flag=True, help="Run operations in pieces, so that --budget suffices for them.")
@click.option(
    "--split-exact", is_flag=True, help="Like --split, only in pieces that came out bit by bit as the whole."
)
@click.option("--remeasure", is_flag=True, help="Measure the model even if an earlier graph of it is there.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=FILE,
    callback=folder_argument,
    metavar="FOLDER",
    help="Folder to write to; it is made.  [default: the working folder]",
)
@output_options
def optimize(
    model: str,
    search: Search,
    measurement: Measurement,
    split: bool,
    split_exact: bool,
    remeasure: bool,
    folder: Path | None,
    output: Output,
) -> None:
    """Plan MODEL.py within a memory budget: profile, solve and report in one.

    It writes MODEL.graph.json, MODEL.schedule.json and MODEL.report.html into the working folder or that of
    -o. A graph that is there is reused, without measuring, if model, device, optimizer and PyTorch are as
    they were. ENTRY (default: build) is as in `plan profile`; the file is run. Ctrl-C ends the search with
    the best schedule so far.

    \b
    plan optimize model.py --budget 12GB --device cuda
    plan optimize model.py --budget 60% --optimizer adamw
    plan optimize model.py --budget 30% --split -o plans
    plan optimize model.py --budget 60% --split-exact
    plan optimize model.py --gpu rtx3060
    """
    if search.budget is None and search.machine_path is None and measurement.preset is None:
        raise click.UsageError("give a --budget, like 12GB or 60%, or a GPU to estimate for, --gpu NAME")
    if (split or split_exact) and search.budget is None:
        raise click.UsageError("--split needs a --budget, like 12GB or 60%: for it operations run in pieces")
    asked = (search.budget if flag else None for flag in (split, split_exact))
    measurement = in_pieces(measurement, *asked)
    graph_to, schedule_to, report_to = (
        destination_of(None, model, ending, folder or Path())
        for ending in (".graph.json", ".schedule.json", ".report.html")
    )
    estimated = measurement.preset is not None
    output.phase.begin(1, _PHASES)
    graph = None
    # An estimate takes seconds, and its file says nothing of --host and --lanes.
    if not (remeasure or estimated):
        graph = graph_measured_before(graph_to.path, model, measurement, output)
    # Read now: `graph` is set below either way.
    measured_now = graph is None
    graph_line: list[Row] = [("graph", str(graph_to.path))]
    phases = Phases()
    given = chosen_machine(search.machine_path, output)

    def save(graph: Graph) -> None:
        nonlocal graph_line
        graph_to.path.parent.mkdir(parents=True, exist_ok=True)
        written = write_out(graph_to, partial(save_graph, graph))
        written.tell()
        graph_line = written.row("graph")

    def solve(graph: Graph) -> Found:
        output.phase.begin(2, _PHASES)
        return solve_graph(
            graph,
            graph_to.path,
            search=search,
            machine=given or graph.machine,
            race=Incumbent(),
            phases=phases,
            output=output,
        )

    try:
        if graph is not None:
            found = solve(graph)
        elif measurement.within is not None:
            graph, found = solve_in_pieces(model, measurement, search, solve, output)
            save(graph)
        else:
            graph = make_graph(model, measurement, output)
            save(graph)
            found = solve(graph)
    except InfeasibleError as error:
        # Only operations measured whole may be in pieces too.
        if graph is not None and measurement.whole:
            advise_pieces(error, graph, model, measurement, search)
        output.refusal(refusal_document(error))
        raise
    schedule = write_out(schedule_to, found.save)
    schedule.tell()
    held = open_schedule(schedule_to.path, graph_to.path, output)
    output.phase.begin(3, _PHASES)
    # After Ctrl-C the page comes at once, without lower bounds.
    bound_seconds = 0.0 if found.solution.interrupted else min(PRICE_SECONDS, search.bound_time)
    subject = subject_of(held, validate_schedule(held, schedule_to.path))
    with output.status("writing the report"):
        page = page_of(held, subject, bound_seconds, schedule=schedule_to.path)
        report = write_out(report_to, partial(write_view, page))
    output.result(
        {
            **found.document(),
            "measured": measured_now,
            "graph": str(graph_to.path),
            "schedule": schedule.name,
            "report": report.name,
        },
        labelled(
            [
                *made_rows(graph)[:1],
                *pieces_rows(graph.source),
                *found.rows(),
                *graph_line,
                *schedule.row("schedule"),
                *report.row("report"),
                *next_rows(held, schedule_to.path, subject.report.overhead),
            ]
        ),
    )
    for line in found.solution.notes:
        output.note(line)
    report.tell()
    phases.tell(search.time_limit, output)
    if found.solution.interrupted:
        output.note("interrupted: this is the best schedule so far")
        raise SystemExit(Exit.INTERRUPTED)
