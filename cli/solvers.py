"""`plan solvers`: the algorithms by name, what each accepts, where it comes from, its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from ..graphs.errors import MissingPackageError
from ..solvers.registry import run as registry
from .options import output_options
from .output import Output, Row, labelled


@click.command()
@output_options
def solvers(output: Output) -> None:
    """List the solvers: what each does and accepts, its source, and its settings with their defaults.

    \b
    plan solvers
    """
    listed = [{**asdict(entry), "settings": _settings(entry.name)} for entry in registry.entries()]
    output.result({"solvers": listed}, labelled(row for solver in listed for row in _rows(solver)))


def _settings(name: str) -> dict[str, Any] | None:
    """None where the solver's package is not here."""
    try:
        return registry.settings_of(name)
    except MissingPackageError:
        return None


def _rows(solver: Mapping[str, Any]) -> Iterator[Row]:
    yield solver["name"], solver["summary"]
    yield "", f"takes {solver['accepts']}"
    settings: dict[str, Any] | None = solver["settings"]
    if settings is None:
        yield "", "can't be used: its package is not installed"
    elif settings:
        words = (key if value is None else f"{key}={value}" for key, value in settings.items())
        yield "", f"settings: {', '.join(words)}"
    yield "", solver["source"]
