"""`plan bench`: solvers compared on graphs and budgets, every row judged by the simulator."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

import click

from ..graphs.errors import InputError, MissingPackageError
from ..graphs.files import graph_files
from ..planner.budget import Budget, parse_budget
from ..solvers import registry
from ..solvers.comparison import Contender, Instance, Row, Trial, contender, instance, trials
from ..solvers.comparison_file import append_row, prepare, read_rows
from ..solvers.comparison_run import run
from ..solvers.comparison_summary import standings
from ..solvers.published import Match, load_published, matches
from .bench_tables import comparison_lines, match_document
from .exits import Exit
from .options import FILE, output_options, seconds_argument, settings_argument
from .output import Output

BUDGETS = "75%,60%,50%,40%,30%,20%"


def budgets_argument(ctx: click.Context, param: click.Parameter, text: str) -> list[Budget]:
    """Callback of --budgets."""
    try:
        return [parse_budget(one) for one in text.split(",")]
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def table_argument(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Callback of -o: a fault is found before the work is done."""
    if path is None:
        return None
    if path.suffix != ".csv":
        raise click.BadParameter(f"{path}: the suffix must be .csv", ctx, param)
    if path.is_dir():
        raise click.BadParameter(f"{path}: cannot be written: it is a folder", ctx, param)
    return path


@click.command()
@click.argument("graphs", type=FILE, nargs=-1, required=True)
@click.option(
    "--solvers", "names", metavar="A,B", help="Which solvers to compare.  [default: all that are here]"
)
@click.option("--budgets", callback=budgets_argument, default=BUDGETS, show_default=True, metavar="B,B")
@click.option(
    "--time-limit",
    type=float,
    callback=seconds_argument,
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds for each row.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=settings_argument,
    metavar="SOLVER.KEY=VALUE",
    help="A setting of one of the solvers; may be given several times.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Rows that are worked on at a time, each in a process of its own.",
)
@click.option("-o", "--output", "destination", type=FILE, callback=table_argument, help="The rows: a .csv.")
@click.option("--again", is_flag=True, help="Solve anew what the .csv has already.")
@click.option("--published", "published_path", type=FILE, help="Published results to stand beside ours.")
@output_options
def bench(
    graphs: tuple[Path, ...],
    names: str | None,
    budgets: list[Budget],
    time_limit: float,
    settings: dict[str, str],
    workers: int,
    destination: Path | None,
    again: bool,
    published_path: Path | None,
    output: Output,
) -> None:
    """Compare solvers on GRAPHS (files, or folders of them), each within each budget.

    Every row is a schedule that the simulator accepts, or says why there is none. Rows that the .csv has
    already are not solved again, so that a comparison that was ended goes on where it stood.
    """
    contenders = _contenders(names, settings)
    published = load_published(published_path) if published_path else {}
    known = read_rows(destination) if destination else {}
    asked = trials(_instances(graphs, output), budgets, contenders, time_limit)
    if destination:
        prepare(destination)
    left = [trial for trial in asked if again or trial.key not in known]
    rows = {trial.key: known[trial.key] for trial in asked if trial.key in known}
    if destination and len(left) < len(asked):
        output.note(f"{len(asked) - len(left)} of {len(asked)} rows are in {destination} already")
    interrupted = False
    try:
        for row in _solved(left, workers, destination, output):
            rows[row.key] = row
    except KeyboardInterrupt:
        interrupted = True
    found = [rows[trial.key] for trial in asked if trial.key in rows]
    _show(found, matches(found, published), interrupted, output)
    if interrupted:
        there = f" in {destination}" if destination else ""
        output.note(f"interrupted: {len(found)} of {len(asked)} rows are{there or ' done'}")
        raise SystemExit(Exit.INTERRUPTED)


def _contenders(names: str | None, settings: Mapping[str, str]) -> list[Contender]:
    """Raises InputError: an unknown solver or setting, or a setting of a solver that does not compete."""
    here = [entry.name for entry in registry.entries()]
    chosen = here if names is None else list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        registry.entry(name)
    given: dict[str, dict[str, str]] = {name: {} for name in chosen}
    for path, value in settings.items():
        solver, dot, key = path.partition(".")
        if not (dot and key) or solver not in given:
            raise InputError(
                f"--set {path}: settings are SOLVER.KEY=VALUE, and the solvers are {', '.join(chosen)}"
            )
        given[solver][key] = value
    contenders: list[Contender] = []
    for name in chosen:
        with suppress(*([MissingPackageError] if names is None else [])):
            contenders.append(contender(name, given[name]))
    return contenders


def _instances(paths: Iterable[Path], output: Output) -> list[Instance]:
    """Raises InputError: no such file, a file that is no graph, a folder without any."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside, others = graph_files(path)
        if not inside:
            raise InputError(f"{path}: there is no graph in this folder")
        files += inside
        if others:
            output.note(f"not graphs, left out: {', '.join(map(str, others))}")
    return [instance(path) for path in files]


def _solved(trials: list[Trial], workers: int, destination: Path | None, output: Output) -> Generator[Row]:
    with output.progress("comparing") as progress, closing(run(trials, workers)) as rows:
        progress(0, len(trials), "")
        for done, row in enumerate(rows, start=1):
            if destination:
                append_row(destination, row)
            progress(done, len(trials), row.solver)
            yield row


def _show(rows: list[Row], matched: list[Match], interrupted: bool, output: Output) -> None:
    output.result(
        {
            "rows": [asdict(row) for row in rows],
            "solvers": [asdict(standing) for standing in standings(rows)],
            "published": [match_document(match) for match in matched],
            "interrupted": interrupted,
        },
        comparison_lines(rows, matched),
    )
