"""`plan solve`: a fast schedule within a budget, validated by the simulator before it is reported."""

from __future__ import annotations

from pathlib import Path

import click

from ..graphs.errors import InputError
from ..graphs.files.documents import write_document
from ..graphs.graph import Graph
from ..solvers.bounds.certificate import check_certifiable, refusal_certificate
from ..solvers.incumbent import Incumbent
from ..solvers.problem import InfeasibleError, Problem
from .exits import Exit
from .help import PlanCommand
from .options import (
    FILE,
    chosen_machine,
    destination_option,
    output_options,
    table_argument,
    writable,
)
from .parameter_types import DOCUMENT
from .phases import Phases
from .printing.figures import graph_row
from .printing.output import Output, labelled
from .printing.output_files import Written, check_spared, destination_of, write_out
from .printing.race_log import write_csv
from .solving import Found, Search, refusal_document, search_options, solve_graph
from .splits import splits_of


@click.command(cls=PlanCommand)
@click.argument("graph", type=DOCUMENT)
@search_options(budget="the device's capacity", machine="that of the graph")
@destination_option("GRAPH.schedule.json in the working folder")
@click.option(
    "--log",
    "log_path",
    type=FILE,
    callback=table_argument,
    metavar="FILE.csv",
    help="File for the search: when which schedule and bound was found, and by what.  [default: none]",
)
@click.option(
    "--certificate",
    "certificate_path",
    type=FILE,
    callback=writable,
    help="File for what proves the schedule's claims, or that there is none, for `plan verify`.  "
    "[default: none]",
)
@click.option(
    "--split-fixed",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Split of the graph to solve, and no other; 0 for whole operations.  [default: the fastest of all]",
)
@output_options
def solve(
    graph: Path,
    search: Search,
    destination: Path | None,
    log_path: Path | None,
    certificate_path: Path | None,
    split_fixed: int | None,
    output: Output,
) -> None:
    """Find a fast schedule of GRAPH within a memory budget.

    Without --budget the device's capacity is the budget, where the machine has one. A graph of `plan profile
    --split any` may run operations in pieces: the split with the fastest schedule is taken. Ctrl-C ends the
    search: the best schedule so far is written, and the exit code is 130.

    \b
    plan solve graph.yaml --budget 12GB
    plan solve graph.yaml --budget 60% --solver rk-rotor --time-limit 30
    """
    races, phases = list[tuple[Graph, Incumbent]](), Phases()
    to = destination_of(destination, graph, ".schedule.json")
    with phases.of("reading the graph"):
        splits = splits_of(graph, split_fixed, search.start)
    check_spared(to, graph, search.machine_path)
    if certificate_path is not None:
        check_certifiable(splits.graphs[0])
        others = {path.resolve() for path in (graph, search.machine_path, log_path, to.path) if path}
        if certificate_path.resolve() in others:
            raise InputError(
                f"{certificate_path}: --certificate would write over another file of this command"
            )
    given = chosen_machine(search.machine_path, output)

    def solve_one(one: Graph, search: Search) -> Found:
        races.append((one, Incumbent()))
        return solve_graph(
            one,
            graph,
            search=search,
            machine=given or one.machine,
            race=races[-1][1],
            phases=phases,
            output=output,
        )

    try:
        found = splits.solved(search, solve_one)
    except InfeasibleError as error:
        output.refusal(refusal_document(error))
        if certificate_path is not None and len(splits.graphs) > 1:
            output.note("no certificate: it would prove the refusal of one split (--split-fixed)")
        elif certificate_path is not None and error.problem is not None:
            # The refusal stays the command's error, whatever becomes of its proof.
            output.note(_write_refusal(error, error.problem, certificate_path, search.bound_time))
        write_out(log_path, lambda path: write_csv(path, races[-1][1].history)).tell()
        raise
    with phases.of("writing the schedule"):
        written = write_out(to, found.save)
    proven = Written()
    if certificate_path is not None:
        try:
            with phases.of("writing the certificate"):
                certificate = found.certificate()
            proven = write_out(certificate_path, lambda path: write_document(certificate, path))
        except InputError as error:
            proven = Written(fault=str(error))  # after the result has been printed
    race = next(race for graph, race in races if graph is found.problem.graph)
    logged = write_out(log_path, lambda path: write_csv(path, race.history))
    rows = [*splits.rows(found), *found.rows(), *written.row("schedule"), *proven.row("certificate")]
    output.result(
        {
            **found.document(),
            "split": splits.document(found),
            "schedule": written.name,
            "certificate": proven.name,
        },
        labelled([graph_row(found.problem.graph), *rows]),
    )
    for line in found.solution.notes:
        output.note(line)
    written.tell()
    proven.tell()
    logged.tell()
    phases.tell(search.time_limit, output)
    if found.solution.interrupted:
        output.note("interrupted: this is the best schedule so far")
        raise SystemExit(Exit.INTERRUPTED)


def _write_refusal(error: InfeasibleError, problem: Problem, path: Path, seconds: float) -> str:
    """Write what proves that there is no schedule, if something does. Returns a line that says so."""
    try:
        certificate = refusal_certificate(problem, error.bounds, seconds)
        if certificate is None:
            return "nothing proves that there is no schedule: no certificate is written"
        written = write_out(path, lambda to: write_document(certificate, to))
        written.tell()
    except InputError as fault:
        return f"no certificate: {fault}"
    return f"what proves it is in {path}"
