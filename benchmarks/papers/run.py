"""The papers' tables and figures again: run what is missing, write benchmarks/results/papers.md.

    python benchmarks/papers/run.py [FIGURE …] [--list] [--seconds S]

Each row is added to benchmarks/papers/rows.csv once it is there; the same command goes on with what that
file lacks (delete a line to measure it anew). Without a figure only the page is written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from page import page, picture
from registry import FIGURES, PAPERS
from rows import append, load, measured, missing

ROWS = Path(__file__).with_name("rows.csv")
RESULTS = Path(__file__).resolve().parents[1] / "results"


def write(results: Path) -> None:
    rows = load(ROWS)
    (results / "papers").mkdir(exist_ok=True)
    (results / "papers.md").write_text(page(PAPERS, rows))
    for figure in FIGURES.values():
        file = results / "papers" / f"{figure.name}.svg"
        if drawn := picture(figure, rows):
            file.write_text(drawn)
        else:
            file.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE")
    parser.add_argument("--list", action="store_true", help="the figures, and the rows that each lacks")
    parser.add_argument("--seconds", type=float, help="for one solve; default: the figure's own")
    given = parser.parse_args()
    if unknown := sorted(set(given.figures) - set(FIGURES)):
        parser.error(f"no such figure: {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    if given.list:
        known = load(ROWS)
        for figure in FIGURES.values():
            print(f"{figure.name:24} {len(list(missing(figure, known))):3} missing  {figure.title}")
        return
    for name in given.figures:
        figure = FIGURES[name]
        for case in missing(figure, load(ROWS)):
            row = measured(figure, case, given.seconds or figure.seconds)
            append(ROWS, row)
            print(name, row.case, dict(row.own), f"{row.wall:.1f} s", flush=True)
    write(RESULTS)


if __name__ == "__main__":
    main()
