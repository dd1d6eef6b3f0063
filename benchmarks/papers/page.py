"""benchmarks/results/papers.md and its pictures, from the rows that were measured."""

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

SPELLED = {"host": "host memory, GB", "budget": "budget, GB", "ssds": "disks", "swap": "share swapped"}
"""What is run, as the page calls it."""

Rows = Mapping[tuple[str, str], Row]


def page(papers: Mapping[str, tuple[Sequence[Figure], Sequence[Missing]]], rows: Rows) -> str:
    """papers: name of a paper -> its figures, and what it has beside them."""
    lines = [HEAD]
    for paper, (figures, absent) in papers.items():
        lines.append(f"## {paper}\n")
        for figure in figures:
            lines += [*_figure(figure, rows), ""]
        for head, simulable in (("Not had by simulation", False), ("Could be simulated, is not yet", True)):
            if these := [each for each in absent if each.simulable == simulable]:
                lines.append(f"{head}:\n")
                lines += [f"- {each.place}: {each.reason}" for each in these]
                lines.append("")
    return "\n".join(lines)


def picture(figure: Figure, rows: Rows) -> str:
    """Its SVG; empty where nothing can be drawn."""
    if figure.plot is None:
        return ""
    own: dict[str, list[tuple[float, float]]] = {}
    published: dict[str, list[tuple[float, float]]] = {}
    words: dict[str, int] = {}
    for case, row in _done(figure, rows):
        for y in figure.plot.y:
            name = _curve(figure.plot, case.given, y)
            for found, values in ((own, row.own), (published, case.published)):
                x = case.given.get(figure.plot.x, row.own.get(figure.plot.x))
                if x == "":
                    continue
                if isinstance(x, str):
                    x = words.setdefault(x, len(words))
                if x is not None and (value := _number(values.get(y))) is not None:
                    found.setdefault(name, []).append((x, value))
    drawn: dict[str, Points] = dict(own.items())
    axis = figure.plot.axis or figure.plot.y[0]
    return (
        svg(
            drawn,
            published,
            SPELLED.get(figure.plot.x, figure.plot.x),
            axis,
            words=[*words],
            log=figure.plot.log,
        )
        if drawn
        else ""
    )


def _number(value: str | int | float | None) -> float | None:
    """Also of a model's size, as 13B; None of any other text."""
    if isinstance(value, str):
        return float(value[:-1]) if re.fullmatch(r"[0-9.]+B", value) else None
    return value


def _curve(plot: Plot, given: Values, y: str) -> str:
    """The values of `by`, and of several y which: without the unit, which stands at the axis."""
    values = {key: given.get(key, "") for key in plot.by}
    parts = [value if isinstance(value, str) else f"{key} {value}" for key, value in values.items()]
    unit = plot.axis.rpartition(", ")[2]
    parts += [y.removesuffix(f", {unit}")] if len(plot.y) > 1 else []
    return " ".join(filter(None, parts)) or y


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
        said = (f"{SPELLED.get(key, key)} {done[0][0].given[key]}" for key in same)
        yield f"In all rows: {', '.join(said)}.\n"
    own = list(dict.fromkeys(key for _case, row in done for key in row.own))
    shown = {key for case, _row in done for key in case.published}
    heads = [
        *(SPELLED.get(key, key) for key in given),
        *(head for key in own for head in ((key, f"{key}, published") if key in shown else (key,))),
    ]
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for case, row in done:
        cells = [_cell(case.given.get(key, "")) for key in given]
        for key in own:
            cells.append(_cell(row.own.get(key, "")))
            cells += [_cell(case.published.get(key, ""))] if key in shown else []
        yield "| " + " | ".join(cells) + " |"


def _cell(value: str | int | float) -> str:
    """Of a refusal, what it says first."""
    return f"{value:.4g}" if isinstance(value, float) else re.split("[:;]", str(value))[0]


def _words(given: Values) -> str:
    return json.dumps(dict(given))[1:-1].replace('"', "")
