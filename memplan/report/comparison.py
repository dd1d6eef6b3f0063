"""A comparison of solvers as one page, HTML or Markdown, with its tables and plots in it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ..comparison.tables import Remark, Table
from .still import html_table, names_first, still_page

_STYLE = """
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; margin: 0.8rem 0; }
.figures svg { flex: 1 1 340px; max-width: 480px; height: auto; }
li.good { color: var(--good); } li.bad { color: var(--bad); }
"""


@dataclass(frozen=True)
class Comparison:
    """Content of a page that compares solvers.

    origin: how the page was made, a line each.
    summary, matrices: tables over all graphs, and graph by graph with their common legend.
    plots: figures as SVG.
    remarks: lines below the summary.
    """

    title: str
    origin: Sequence[str]
    summary: Sequence[Table]
    plots: Sequence[str]
    matrices: Sequence[Table]
    legend: str
    remarks: Sequence[Remark]


def html(found: Comparison) -> str:
    """Return the page as one self-contained HTML file, light or dark as the reader's system is."""
    return still_page(found.title, _html_body(found), _STYLE)


def markdown(found: Comparison) -> str:
    return "\n".join(_markdown_lines(found)) + "\n"


def _html_body(found: Comparison) -> Iterator[str]:
    yield f"<h1>{escape(found.title)}</h1>"
    for table in found.summary:
        yield from html_table(table)
    if found.remarks:
        lines = (f'<li class="{_kind(one)}">{escape(one.text)}</li>' for one in found.remarks)
        yield f"<ul>{''.join(lines)}</ul>"
    yield f'<div class="figures">{"".join(found.plots)}</div>'
    yield f'<h2>Graph by graph</h2><p class="hint">{escape(found.legend)}</p>'
    for table in found.matrices:
        yield from html_table(table)
    yield f"<footer>{'<br>'.join(map(escape, found.origin))}</footer>"


def _markdown_lines(found: Comparison) -> Iterator[str]:
    yield f"# {_plain(found.title)}\n"
    for table in found.summary:
        yield from _markdown_table(table)
    yield from (f"- {_plain(one.text)}" for one in found.remarks)
    for svg in found.plots:
        # A figure in Markdown needs a text: that of the SVG.
        name = svg.split('aria-label="', 1)[1].split('"', 1)[0]
        yield f"\n![{name}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})"
    yield f"\n## Graph by graph\n\n{_plain(found.legend)}\n"
    for table in found.matrices:
        yield from _markdown_table(table)
    yield from (f"- {_plain(line)}" for line in found.origin)


def _markdown_table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"### {_plain(table.title)}\n"
    if table.rows:
        yield f"| {' | '.join(map(_plain, names_first(table.heads)))} |"
        yield f"|---|{'---:|' * (len(table.heads) - 1)}"
        yield from (f"| {' | '.join(map(_plain, names_first(row)))} |" for row in table.rows)
        yield ""
    if table.hint:
        yield f"{_plain(table.hint)}\n"


def _kind(remark: Remark) -> str:
    return "good" if remark.good else "bad"


_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})


def _plain(text: str) -> str:
    """Escape the characters that Markdown would interpret."""
    return text.translate(_SPECIAL)
