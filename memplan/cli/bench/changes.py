"""Output of `plan bench --compare`: this table compared with an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ...comparison.changes import TOLERANCE, Change, Verdict, changes
from ...comparison.file import read_rows
from ...comparison.trials import Row
from ...graphs.errors import InputError
from ...graphs.files.documents import regular_size
from ...solvers.settings import read_number
from ..exits import CheckFailedError


def tolerance_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> float:
    """Parse --tolerance; a callback for click."""
    try:
        tolerance = TOLERANCE if text is None else read_number(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no share, like 0.1% or 0.001", ctx, param) from None
    if not 0 <= tolerance < 1:
        raise click.BadParameter(f"{text}: it must be at least 0 and below 1", ctx, param)
    return tolerance


def earlier_argument(ctx: click.Context, param: click.Parameter, path: Path | None) -> list[Row] | None:
    """Read the rows of --compare before the work is done; a callback for click."""
    if path is None:
        return None
    try:
        regular_size(path)
        return list(read_rows(path).values())
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def compared(earlier: Sequence[Row] | None, rows: Sequence[Row], tolerance: float) -> list[Change]:
    return [] if earlier is None else changes(earlier, rows, tolerance)


def change_document(change: Change) -> dict[str, Any]:
    """Return a change for JSON. Times in seconds."""
    row = change.row
    return {
        "verdict": change.verdict.value,
        "graph": row.graph,
        "budget": row.budget,
        "solver": row.solver,
        "seed": row.seed,
        "old_outcome": change.old and change.old.outcome,
        "old_time": change.old and change.old.time,
        "outcome": change.new and change.new.outcome,
        "time": change.new and change.new.time,
        "percent": change.percent,
    }


def refuse_worse(found: Sequence[Change]) -> None:
    """Raise CheckFailedError if a row is worse than it was."""
    worse = sum(change.verdict is Verdict.WORSE for change in found)
    if worse:
        there = sum(change.new is not None for change in found)
        raise CheckFailedError(f"{worse} of {there} rows are worse than in the earlier table")
