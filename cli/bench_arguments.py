"""What `plan bench` is given: graphs or folders, solvers with settings, budgets, the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import click

from ..comparison.trials import Contender, Instance, contender, instance
from ..graphs.errors import InputError, MissingPackageError
from ..graphs.files.files import graph_files
from ..planner.budget import Budget, parse_budget
from ..solvers.registry import run as registry
from .output import Output


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
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{path}: cannot be written: it is no regular file", ctx, param)
    return path


def chosen_contenders(names: str | None, settings: Mapping[str, str]) -> list[Contender]:
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


def instances(paths: Iterable[Path], output: Output) -> list[Instance]:
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
