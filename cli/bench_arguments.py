"""What `plan bench` is given: graphs or folders, solvers with settings, budgets, the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from ..comparison.trials import Contender, Instance, contender, instance
from ..graphs.errors import InputError, MissingPackageError
from ..graphs.files.files import graph_files, save_graph
from ..instances.catalogue import Entry, corpus
from ..planner.budget import Budget, parse_budget
from ..solvers.registry import run as registry
from .options import with_gap
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


def chosen_contenders(
    names: str | None, settings: Mapping[str, str], gap: str | None = None
) -> list[Contender]:
    """gap: of those that have such a setting. Raises InputError: an unknown solver or setting, a setting of a
    solver that does not compete, or a gap where none has one."""
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
            own = gap if "gap" in registry.settings_of(name) else None
            contenders.append(contender(name, with_gap(given[name], own, f"{name}.")))
    if gap is not None and not any("gap" in one.given for one in contenders):
        raise InputError(f"--gap: of {', '.join(chosen)} none has such a setting")
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


def corpus_instances(names: Iterable[str], folder: Path) -> list[Instance]:
    """Of corpora of `plan instances`; folder: where those that are made by rule are written.

    Raises InputError for an unknown corpus.
    """
    chosen = [corpus(name) for name in names]
    return [_packaged(entry, folder) for one in chosen for entry in one.instances.values()]


def _packaged(entry: Entry, folder: Path) -> Instance:
    path = entry.path
    if path is None:
        path = folder / f"{entry.name}.json"
        save_graph(entry.graph(), path)
    return replace(instance(path), graph=entry.name)
