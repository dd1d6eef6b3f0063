"""Static pages of tables and figures: no code, one file, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ..comparison.tables import Table
from .page import ASSETS


def still_page(title: str, body: Iterable[str], style: str = "") -> str:
    """Return self-contained HTML. style: CSS in addition to the pages' own."""
    style = (ASSETS / "page.css").read_text(encoding="utf-8") + style
    lines, title = "\n".join(body), escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}: memplan</title>\n<style>{style}</style></head>\n<body>\n{lines}\n</body></html>\n"
    )


def html_table(table: Table) -> Iterator[str]:
    """Yield the table as HTML, with the column of names first."""
    if table.title:
        yield f"<h2>{escape(table.title)}</h2>"
    if table.rows:
        rows = [_line(table.heads, "th"), *(_line(row, "td") for row in table.rows)]
        yield f'<div class="wide"><table>{"".join(rows)}</table></div>'
    if table.hint:
        yield f'<p class="hint">{escape(table.hint)}</p>'


def _line(cells: Sequence[str], kind: str) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in names_first(cells))}</tr>"


def names_first(cells: Sequence[str]) -> list[str]:
    return [cells[-1], *cells[:-1]]
