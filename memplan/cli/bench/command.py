"""`plan bench`: solvers compared on graphs and budgets, every row validated by the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import date
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ...comparison.best_known import Beaten, beaten, joined, load_best, revision, save_best
from ...comparison.changes import Change
from ...comparison.file import append_row, prepare, read_rows
from ...comparison.paired import paired
from ...comparison.published import Match, load_published, matches, published_budgets
from ...comparison.run import run
from ...comparison.summary import settled, standings
from ...comparison.trials import Row, trials
from ...graphs.errors import InputError
from ...graphs.folders.scratch import Scratch
from ...instances.catalogue import BEST_KNOWN, PUBLISHED
from ...planner.budget import Budget
from ...solvers.registry import run as registry
from ...solvers.techniques import Technique
from ...solvers.workers.cluster import BACKENDS
from ..exits import Exit, NothingSolvedError
from ..help import PlanCommand
from ..known_names import completing, solvers
from ..known_names import corpora as corpus_names
from ..options import (
    FILE,
    allow_option,
    bound_time_option,
    folder_argument,
    output_options,
    settings_option,
    table_option,
    time_limit_option,
    writable,
    writable_as,
)
from ..parameter_types import Word
from ..printing.output import Output
from .arguments import (
    BASELINES,
    budgets_argument,
    check_budgets,
    chosen_contenders,
    corpus_instances,
    instances,
    seeds_argument,
    without_corpora,
)
from .changes import change_document, compared, earlier_argument, refuse_worse, tolerance_argument
from .chosen_rows import dry_document, dry_lines, filtered
from .tables import comparison_lines, match_document, record_document
from .written import PAGES, write_page, write_plots

PUBLIC = "public"
"""Corpus for which there are published results."""
BUDGETS = "75%,60%,50%,40%,30%,20%"


@click.command(cls=PlanCommand)
@click.argument("graphs", type=FILE, nargs=-1)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME",
    shell_complete=completing(corpus_names),
    help="Graphs that come with memplan (plan instances); may be given several times.",
)
@click.option(
    "--solvers",
    "names",
    metavar="A,B",
    shell_complete=completing(solvers),
    help="Solvers to compare.  [default: all that are here]",
)
@click.option(
    "--baseline",
    "baselines",
    type=Word(BASELINES),
    multiple=True,
    help="Compare with what PyTorch does too: its partitioner under activation_memory_budget "
    "(torch-partitioner), and torch.utils.checkpoint around each layer (layer-checkpoint).  [default: none]",
)
@click.option(
    "--budgets",
    callback=budgets_argument,
    default=BUDGETS,
    show_default=True,
    metavar="B,B",
    help="Device memory, as --budget of `plan solve`: bytes, 60% of the baseline's peak, 60%a of its "
    "activations.",
)
@time_limit_option("Time of the search for each row.  [default: 60 s]", default=60.0)
@bound_time_option(
    "Time, at most, for the lower bounds of a graph and budget; 0 for none.", registry.BOUND_SECONDS
)
@click.option(
    "--gap",
    metavar="0.5%|0.005",
    help="Optimality gap at which to stop, for solvers that have that setting.  [default: each solver's own]",
)
@click.option(
    "--seeds",
    callback=seeds_argument,
    metavar="3|0,1,2",
    help="Seeds, how many or which: a row each, for solvers that have a seed; the others run once.  "
    "[default: one row]",
)
@settings_option("SOLVER.KEY=VALUE", "one of the solvers")
@allow_option
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of rows that are solved at a time, each in a separate process.  [default: 1; on a "
    "cluster as many as it has workers]",
)
@click.option(
    "--backend",
    type=Word(BACKENDS),
    default="loky",
    show_default=True,
    help="Place where rows are solved: this machine, or a cluster that sees the same files (for Dask that of "
    "DASK_SCHEDULER_ADDRESS, else one started here).",
)
@table_option("the rows, .csv, each as it comes.  [default: rows are printed, not saved]")
@click.option(
    "--filter",
    "pattern",
    metavar="TEXT",
    help="Rows to solve: those whose GRAPH/BUDGET/SOLVER has this text, in which * stands for any.  "
    "[default: all]",
)
@click.option("--dry-run", is_flag=True, help="List the rows and the time they may take; solve nothing.")
@click.option("--rerun", is_flag=True, help="Solve rows anew that the .csv already has.")
@click.option(
    "--published",
    "published_path",
    type=FILE,
    help="File of published results to compare with.  [default: those that come with memplan, for "
    "--corpus public]",
)
@click.option(
    "--peers",
    is_flag=True,
    help="Solve the graphs of --corpus public, and of GRAPHS, at the budgets for which results are published "
    "(MOCCASIN, FastSA, Checkmate; DTR if GRAPHS has its logs by `plan import dtr`), by `auto`, and compare "
    "with them.",
)
@click.option(
    "--compare",
    "earlier",
    type=FILE,
    callback=earlier_argument,
    metavar="OLD.csv",
    help="Table of an earlier comparison: which rows are better, worse, equal, new, gone. Exit code 5 if one "
    "is worse.  [default: none]",
)
@click.option(
    "--tolerance",
    callback=tolerance_argument,
    metavar="0.1%|0.001",
    help="Difference of times up to which --compare takes two schedules as equal.  [default: 0.1%]",
)
@click.option(
    "--plots",
    type=FILE,
    callback=folder_argument,
    metavar="FOLDER",
    help="Folder for plots, .svg: performance profile, and times to a gap.  [default: none]",
)
@click.option(
    "--html",
    "page",
    type=FILE,
    callback=writable_as(*PAGES),
    metavar="OUT.html|OUT.md",
    help="File for tables and plots as one page, with machine, versions and command.  [default: none]",
)
@click.option(
    "--update-best",
    "best_path",
    type=FILE,
    callback=writable,
    help="File of records, made if need be: faster schedules and larger bounds replace what it has.  "
    "[default: compared with what comes with memplan]",
)
@output_options
def bench(
    graphs: tuple[Path, ...],
    corpora: tuple[str, ...],
    names: str | None,
    baselines: tuple[str, ...],
    budgets: list[Budget],
    time_limit: float,
    bound_time: float,
    gap: str | None,
    seeds: tuple[int, ...],
    settings: dict[str, str],
    allow: tuple[Technique, ...] | None,
    workers: int | None,
    backend: str,
    destination: Path | None,
    pattern: str | None,
    dry_run: bool,
    rerun: bool,
    published_path: Path | None,
    peers: bool,
    earlier: list[Row] | None,
    tolerance: float,
    plots: Path | None,
    page: Path | None,
    best_path: Path | None,
    output: Output,
) -> None:
    """Compare solvers on GRAPHS (files, or folders of them) and corpora, each within each budget.

    Every row is a schedule that the simulator accepts, or says why there is none. Exit code 3 if no row has a
    schedule, or a proof that there is none. Rows that the .csv has
    already are not solved anew, so that a comparison that was ended goes on where it stood.

    \b
    plan bench graphs/ --solvers auto,rk-rotor --budgets 75%,50% -o rows.csv
    plan bench --corpus models --solvers auto --baseline torch --time-limit 20
    plan bench --peers dtr-graphs/ --workers 2
    """
    if workers is not None and backend != "loky":
        raise InputError(f"--workers is for this machine: with --backend {backend} all of the cluster's work")
    if allow is not None and best_path is not None:
        raise click.UsageError("--update-best records schedules of all techniques: leave out --allow")
    if peers:
        if click.get_current_context().get_parameter_source("budgets") is not ParameterSource.DEFAULT:
            raise click.UsageError("--peers solves at the published budgets: leave out --budgets or --peers")
        corpora, names = (*corpora, *([PUBLIC] if PUBLIC not in corpora else [])), names or "auto"
    if not (graphs or corpora):
        raise click.UsageError("nothing to compare on: give GRAPHS, or --corpus NAME (plan instances)")
    files = without_corpora(graphs, corpora)
    contenders = chosen_contenders(names, settings, gap, seeds, baselines)
    if published_path is None and PUBLIC in corpora:
        published_path = PUBLISHED
    published = load_published(published_path) if published_path else {}
    records = best_path or BEST_KNOWN
    best_known = load_best(records) if records.exists() else {}
    known = read_rows(destination) if destination else {}
    folder = Path(click.get_current_context().with_resource(Scratch("corpus")))
    given = instances(files, output)
    on = [*given, *corpus_instances(corpora, folder)]
    check_budgets(budgets, on)
    at = [published_budgets(one.graph, published) if peers else budgets for one in on]
    if unknown := [one.graph for one, there in zip(given, at, strict=False) if not there]:
        output.note(f"--peers leaves out {', '.join(unknown)}: no results are published of it")
    each = (trials([one], there, contenders, time_limit, allow) for one, there in zip(on, at, strict=True))
    asked = filtered(list(chain.from_iterable(each)), pattern)
    left = [trial for trial in asked if rerun or trial.key not in known]
    if dry_run:
        to_solve = {trial.key for trial in left}
        output.result(dry_document(asked, to_solve, workers or 1), dry_lines(asked, to_solve, workers or 1))
        return
    if destination:
        prepare(destination)
    rows = {trial.key: known[trial.key] for trial in asked if trial.key in known}
    if destination and len(left) < len(asked):
        output.note(f"{len(asked) - len(left)} of {len(asked)} rows are in {destination} already")
    interrupted, fault = False, None
    fresh: list[Row] = []
    try:
        # Closed on Ctrl-C too, which ends the workers.
        with closing(run(left, workers or 1, bound_time, known.values(), backend)) as solved:
            for row in _kept(solved, len(left), destination, output):
                rows[row.key] = row
                fresh.append(row)
    except KeyboardInterrupt:
        interrupted = True
    except InputError as error:  # the table can no longer be written
        fault = error
    found = [rows[trial.key] for trial in asked if trial.key in rows]
    moved = compared(earlier, found, tolerance)
    alongside = matches(found, published), beaten(found, best_known), moved
    _show(found, *alongside, interrupted, output)
    if best_path and fresh:
        save_best(joined(best_known, fresh, revision(), date.today().isoformat()), best_path)
    if fault:
        raise fault
    written = write_plots(found, plots) if plots else []
    if page and found:
        written.append(write_page(found, *alongside, len(fresh), page))
    for path in written:
        output.note(f"written: {path}")
    if interrupted:
        there = f" in {destination}" if destination else ""
        output.note(f"interrupted: {len(found)} of {len(asked)} rows are{there or ' done'}")
        raise SystemExit(Exit.INTERRUPTED)
    if destination is None and not output.as_json:
        output.note("rows are not saved: give -o rows.csv")
    refuse_worse(moved)
    if found and not settled(found):
        raise NothingSolvedError(f"none of {len(found)} rows has a schedule, or a proof that there is none")


def _kept(solved: Iterable[Row], total: int, destination: Path | None, output: Output) -> Iterator[Row]:
    """Yield each row once it is on file."""
    with output.progress("comparing") as progress:
        progress(0, total, "")
        for done, row in enumerate(solved, start=1):
            progress(done, total, row.solver)
            try:
                if destination:
                    append_row(destination, row)
            # A row that could not be written is shown all the same.
            finally:
                yield row


def _show(
    rows: list[Row],
    matched: list[Match],
    records: list[Beaten],
    moved: list[Change],
    interrupted: bool,
    output: Output,
) -> None:
    output.result(
        {
            "rows": [_document(row) for row in rows],
            "solvers": [asdict(standing) for standing in standings(rows)],
            "paired": [asdict(one) for one in paired(rows)],
            "published": [match_document(match) for match in matched],
            "beaten": [record_document(one) for one in records],
            "changes": [change_document(one) for one in moved],
            "interrupted": interrupted,
        },
        comparison_lines(rows, matched, records, moved),
    )


def _document(row: Row) -> dict[str, Any]:
    """Return a row for JSON. A bound is "inf" if there is no schedule."""
    return {name: "inf" if value == inf else value for name, value in asdict(row).items()}
