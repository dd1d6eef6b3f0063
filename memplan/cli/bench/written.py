"""Files of a comparison to look at: plots, a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ...comparison.best_known import Beaten, revision
from ...comparison.changes import Change
from ...comparison.plot import plots
from ...comparison.published import Match
from ...comparison.tables import (
    LEGEND,
    change_tables,
    curve_tables,
    effort_tables,
    matrices,
    paired_tables,
    published_tables,
    remarks,
    solver_table,
)
from ...comparison.trials import Row
from ...graphs.errors import InputError
from ...graphs.files.documents import write_whole
from ...graphs.units import counted
from ...report.comparison import Comparison, html, markdown
from ...report.origin import made, packages, this_machine

PAGES = {".html": html, ".md": markdown}


def write_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the plots and return their files. Raises InputError."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(svg, folder / f"{name}.svg") for name, svg in plots(rows).items()]


def write_page(
    rows: Sequence[Row],
    matched: Sequence[Match],
    records: Sequence[Beaten],
    moved: Sequence[Change],
    fresh: int,
    path: Path,
) -> Path:
    """Write the page. fresh: number of rows that this run has solved, of at least one. Raises InputError."""
    graphs, solvers = (len({key(row) for row in rows}) for key in (_graph, _solver))
    commit = revision()
    found = Comparison(
        title=f"{counted(solvers, 'solver')} on {counted(graphs, 'graph')}",
        origin=[
            *made(sys.argv[1:]),
            packages() + (f", memplan at {commit}" if commit else ""),
            this_machine(),
            f"{fresh} of {counted(len(rows), 'row')} solved by this run"
            + ("" if fresh == len(rows) else "; the others, maybe elsewhere, before"),
        ],
        summary=[
            solver_table(rows),
            *change_tables(moved),
            *published_tables(matched),
            *paired_tables(rows),
            *effort_tables(rows),
            *curve_tables(rows),
        ],
        plots=list(plots(rows).values()),
        matrices=list(matrices(rows)),
        legend=LEGEND,
        remarks=list(remarks(rows, records)),
    )
    return _write(PAGES[path.suffix](found), path)


def _graph(row: Row) -> str:
    return row.sha256


def _solver(row: Row) -> str:
    return row.solver


def _write(text: str, path: Path) -> Path:
    try:
        write_whole(text.encode(), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    return path
