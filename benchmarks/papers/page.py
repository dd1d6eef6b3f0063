"""docs/papers.md and its pictures, from the rows that were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from curves import Points, svg
from figure import Case, Figure, Missing, Plot, Values
from rows import Row, spelled

HEAD = """# The papers' figures again

Tables and figures of the papers that memplan's solvers come from, made again by simulation. A row shows
ours, and beside it what the paper prints for it. Where a paper shows only a picture, we quote its text.

All times of iterations are simulated on machines as the papers describe them; no GPU was at hand. Seconds of
solving are those of 2 shared cores with other work beside. `python benchmarks/papers/run.py FIGURE …` runs
the rows that are missing and writes this page anew; `--list` names the figures.
"""

Rows = Mapping[tuple[str, str], Row]


def page(papers: Mapping[str, tuple[Sequence[Figure], Sequence[Missing]]], rows: Rows) -> str:
    """papers: name of a paper -> its figures, and what it has beside them."""
    lines = [HEAD]
    for paper, (figures, absent) in papers.items():
        lines.append(f"## {paper}\n")
        for figure in figures:
            lines += [*_figure(figure, rows), ""]
        if absent:
            lines.append("Not had by simulation:\n")
            lines += [f"- {each.place}: {each.reason}" for each in absent]
            lines.append("")
    return "\n".join(lines)


def picture(figure: Figure, rows: Rows) -> str:
    """Its SVG; empty where nothing can be drawn."""
    if figure.plot is None:
        return ""
    ours: dict[str, list[tuple[float, float]]] = {}
    published: dict[str, list[tuple[float, float]]] = {}
    for case, row in _done(figure, rows):
        for y in figure.plot.y:
            name = _curve(figure.plot, case.given, y)
            for found, values in ((ours, row.ours), (published, case.published)):
                x = case.given.get(figure.plot.x, row.ours.get(figure.plot.x))
                if isinstance(x, int | float) and isinstance(value := values.get(y), int | float):
                    found.setdefault(name, []).append((x, value))
    drawn: dict[str, Points] = dict(ours.items())
    y = figure.plot.y[0] if len(figure.plot.y) == 1 else ""
    return svg(drawn, published, figure.plot.x, y, log=figure.plot.log) if drawn else ""


def _curve(plot: Plot, given: Values, y: str) -> str:
    value = given.get(plot.by, "")
    name = value if isinstance(value, str) else f"{plot.by} {value}"
    return " ".join(part for part in (name, y if len(plot.y) > 1 else "") if part) or y


def _done(figure: Figure, rows: Rows) -> list[tuple[Case, Row]]:
    found = ((case, rows.get((figure.name, spelled(case.given)))) for case in figure.cases)
    return [(case, row) for case, row in found if row]


def _figure(figure: Figure, rows: Rows) -> Iterator[str]:
    done = _done(figure, rows)
    yield f"### {figure.name}: {figure.title}\n"
    yield f"{figure.place}. **Published:** {figure.published}\n"
    if done:
        yield from _table(done)
        yield f"\nMeasured {max(row.date for _case, row in done)}, at most {figure.seconds:g} s a solve.\n"
    if picture(figure, rows):
        yield f"![{figure.title}](papers/{figure.name}.svg)\n"
    yield f"**Differences:** {figure.differences}"
    left = len(figure.cases) - len(done)
    if left:
        cases = [_words(case.given) for case in figure.cases if case not in [one for one, _row in done]]
        command = f"python benchmarks/papers/run.py {figure.name}"
        yield f"\nNot run ({left}): {'; '.join(cases)}. `{command}` does it."


def _table(done: Sequence[tuple[Case, Row]]) -> Iterator[str]:
    given = list(dict.fromkeys(key for case, _row in done for key in case.given))
    same = [key for key in given if len(done) > 1 and len({case.given.get(key) for case, _row in done}) == 1]
    given = [key for key in given if key not in same]
    if same:
        yield f"In all rows: {', '.join(f'{key} {done[0][0].given[key]}' for key in same)}.\n"
    ours = list(dict.fromkeys(key for _case, row in done for key in row.ours))
    shown = {key for case, _row in done for key in case.published}
    heads = [
        *given,
        *(head for key in ours for head in ((key, f"{key}, published") if key in shown else (key,))),
    ]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for case, row in done:
        cells = [_cell(case.given.get(key, "")) for key in given]
        for key in ours:
            cells.append(_cell(row.ours.get(key, "")))
            cells += [_cell(case.published.get(key, ""))] if key in shown else []
        yield "| " + " | ".join(cells) + " |"


def _cell(value: str | int | float) -> str:
    """Of a refusal, what it says first."""
    return f"{value:.4g}" if isinstance(value, float) else re.split("[:;]", str(value))[0]


def _words(given: Values) -> str:
    return json.dumps(dict(given))[1:-1].replace('"', "")
