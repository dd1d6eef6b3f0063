"""Arguments of `plan bench`: graphs or folders, solvers with settings, budgets, the table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from ...comparison.trials import Contender, Instance, contender, instance
from ...graphs.errors import InputError, MissingPackageError
from ...graphs.files.files import graph_files, load_graph, save_graph
from ...graphs.units import FEW_BYTES
from ...instances.catalogue import CATALOGUE, Entry, corpora, corpus
from ...planner.bounds import least_memory
from ...planner.budget import Budget, parse_budget
from ...solvers.registry import run as registry
from ..options import with_gap
from ..printing.output import Output
from ..splits import whole_graph

BASELINES = {"torch": ("torch-partitioner", "layer-checkpoint")}
"""Techniques of PyTorch without memplan, as solvers."""

_MOST_SEEDS = 1000


def budgets_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> list[Budget]:
    """Parse --budgets; a callback for click."""
    try:
        return [] if text is None else [parse_budget(one) for one in text.split(",")]
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def check_budgets(budgets: Iterable[Budget], on: Sequence[Instance]) -> None:
    """Raise InputError if a budget is so few bytes, without a unit, that no schedule of any graph fits."""
    for budget in budgets:
        if budget.size is not None and budget.size < FEW_BYTES and on:
            budget.check_meant(min(least_memory(load_graph(one.path)) for one in on))


def seeds_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Parse --seeds, where '3' is 0,1,2; a callback for click."""
    if text is None:
        return ()
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdecimal() and len(word) < 10 for word in words):
        raise click.BadParameter(f"{text!r}: give how many, like 3, or which, like 0,1,2", ctx, param)
    given = [int(word) for word in words]
    if len(given) == 1 and not 0 < given[0] <= _MOST_SEEDS:
        raise click.BadParameter(f"{text}: there must be 1 to {_MOST_SEEDS} seeds", ctx, param)
    return tuple(dict.fromkeys(given)) if len(given) > 1 else tuple(range(given[0]))


def chosen_contenders(
    names: str | None,
    settings: Mapping[str, str],
    gap: str | None = None,
    seeds: Sequence[int] = (),
    baselines: Sequence[str] = (),
) -> list[Contender]:
    """Return the solvers that compete, with their settings.

    gap, seeds: settings of those solvers that have them.
    baselines: names in BASELINES that compete too.

    Raises InputError: an unknown solver or setting, a setting of a solver that does not compete, or a gap or
    seeds if no solver has one.
    """
    here = [entry.name for entry in registry.entries()]
    wanted = here if names is None else [name.strip() for name in names.split(",")]
    chosen = list(dict.fromkeys([*wanted, *(name for one in baselines for name in BASELINES[one])]))
    for name in chosen:
        # For its error: an unknown name.
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
        # Of all solvers those without their package are left out; a named one is an error.
        with suppress(*([MissingPackageError] if names is None else [])):
            known = registry.settings_of(name)
            own = with_gap(given[name], gap if "gap" in known else None, f"{name}.")
            contenders += [
                contender(name, one) for one in _seeded(name, own, seeds if "seed" in known else ())
            ]
    for option, key, asked in (("--gap", "gap", gap is not None), ("--seeds", "seed", bool(seeds))):
        if asked and not any(key in one.given for one in contenders):
            raise InputError(f"{option}: of {', '.join(chosen)} none has such a setting")
    return contenders


def _seeded(name: str, given: dict[str, str], seeds: Sequence[int]) -> list[dict[str, str]]:
    if seeds and "seed" in given:
        raise InputError(f"--seeds and --set {name}.seed= say the same: give one")
    return [{**given, "seed": str(seed)} for seed in seeds] or [given]


def instances(paths: Iterable[Path], output: Output) -> list[Instance]:
    """Read the graphs in files and folders.

    Raises InputError: no such file, a file that is not a graph, a folder without any.
    """
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
    return [instance(path, whole_graph(path, output)) for path in files]


def without_corpora(paths: Sequence[Path], named: Collection[str]) -> list[Path]:
    """Return the paths except the folder of memplan's own graphs, of which corpora are `named`.

    Raises InputError if that folder is among them and no corpus is named.
    """
    solved = [path for path in paths if (path / CATALOGUE).is_file()]
    if solved and not named:
        raise InputError(f"{solved[0]} has memplan's own graphs: say which by --corpus {'|'.join(corpora())}")
    return [path for path in paths if path not in solved]


def corpus_instances(names: Iterable[str], folder: Path) -> list[Instance]:
    """Return the instances of corpora of `plan instances`. folder: to write generated instances to.

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
