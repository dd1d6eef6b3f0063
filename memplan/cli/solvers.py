"""`plan solvers`: the algorithms by name, what each accepts, where it comes from, its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from ..graphs.errors import MissingPackageError
from ..solvers.registry import run as registry
from .help import PlanCommand
from .known_names import completing
from .known_names import solvers as names
from .options import output_options
from .printing.output import Output, Row, labelled


@click.command(cls=PlanCommand)
@click.argument("name", required=False, shell_complete=completing(names))
@output_options
def solvers(output: Output, name: str | None) -> None:
    """List the solvers: what each does and accepts, its source, and its settings with their defaults.

    With a NAME: that solver, and what each of its settings means.

    \b
    plan solvers
    plan solvers rotor
    """
    entries = registry.entries() if name is None else [registry.entry(name)]
    listed = [{**asdict(entry), **_settings(entry.name)} for entry in entries]
    rows = [row for solver in listed for row in _rows(solver, in_full=name is not None)]
    output.result({"solvers": listed}, labelled(rows))


def _settings(name: str) -> dict[str, Any]:
    """Return defaults and declarations of a solver's settings, None if its package is not installed."""
    try:
        return {"settings": registry.settings_of(name), "declarations": registry.declarations_of(name)}
    except MissingPackageError:
        return {"settings": None, "declarations": None}


def _rows(solver: Mapping[str, Any], *, in_full: bool) -> Iterator[Row]:
    yield solver["name"], solver["summary"]
    yield "", f"takes {solver['accepts']}"
    settings: dict[str, Any] | None = solver["settings"]
    if settings is None:
        yield "", "can't be used: its package is not installed"
    elif settings:
        words = (key if value is None else f"{key}={value}" for key, value in settings.items())
        yield "", f"settings: {', '.join(words)}"
        yield from _declared(solver["declarations"]) if in_full else ()
    yield "", solver["source"]


def _declared(declarations: Mapping[str, Mapping[str, str]]) -> Iterator[Row]:
    for name, declaration in declarations.items():
        values = f" ({declaration['values']})" if declaration["values"] else ""
        yield "", f"  {name}: {declaration['help']}{values}"
