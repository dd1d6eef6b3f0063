"""Rows of a comparison before it runs: those that --filter keeps, and the list of --dry-run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rich.text import Text

from ...comparison.trials import Key, Trial
from ...graphs.errors import InputError
from ...graphs.units import duration
from ..printing.output import table


def row_name(trial: Trial) -> str:
    """Return GRAPH/BUDGET/SOLVER, which --filter matches."""
    return f"{trial.instance.graph}/{trial.budget.text.strip()}/{trial.contender.solver}"


def filtered(asked: list[Trial], pattern: str | None) -> list[Trial]:
    """Return the rows whose name has the pattern somewhere, in any case. Raises InputError if none has."""
    if pattern is None:
        return asked
    wanted = f"*{pattern.lower()}*"
    found = [trial for trial in asked if fnmatchcase(row_name(trial).lower(), wanted)]
    if not found:
        likely = f", like {row_name(asked[0])}" if asked else ""
        raise InputError(
            f"--filter {pattern}: no row of {len(asked)} matches: names are GRAPH/BUDGET/SOLVER{likely}"
        )
    return found


def dry_document(asked: Sequence[Trial], left: Collection[Key], workers: int) -> dict[str, Any]:
    """Return the rows for JSON. left: those still to solve."""
    rows = [
        {
            "graph": trial.instance.graph,
            "budget_text": trial.budget.text.strip(),
            "budget": trial.budget_bytes,
            "solver": trial.contender.solver,
            "settings": dict(trial.contender.given),
            "solved_before": trial.key not in left,
        }
        for trial in asked
    ]
    return {"rows": rows, "seconds_at_most": _most_seconds(asked, left, workers)}


def dry_lines(asked: Sequence[Trial], left: Collection[Key], workers: int) -> Iterator[Text]:
    """Yield a line per row, and how many are left to solve in what time."""
    rows = [
        [f"{trial.budget_bytes:,} B", "" if trial.key in left else "solved before", row_name(trial)]
        for trial in asked
    ]
    yield from table(["budget", "", "row"], rows)
    yield Text()
    most = _most_seconds(asked, left, workers)
    time = "" if most is None else f", {duration(most)} of search at most"
    yield Text(f"{len(left)} of {len(asked)} rows to solve{time}; nothing was solved (--dry-run)")


def _most_seconds(asked: Sequence[Trial], left: Collection[Key], workers: int) -> float | None:
    """Return the seconds of search at most, None if a row has no limit. Bounds are not in it."""
    # None is a solver's own limit, which depends on the graph.
    limits = [trial.time_limit for trial in asked if trial.key in left]
    if any(limit is None for limit in limits):
        return None
    return sum(limit for limit in limits if limit is not None) / workers
