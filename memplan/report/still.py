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


_MANY = 5
"""Columns above which each row of a table is a card on a phone."""


def html_table(table: Table, *, names_last: bool = False) -> Iterator[str]:
    """Yield the table as HTML. names_last: whether the column of names stays last, as for verdicts."""
    if table.title:
        yield f"<h2>{escape(table.title)}</h2>"
    if table.rows:
        heads, *rows = ([*row] if names_last else names_first(row) for row in (table.heads, *table.rows))
        words = len(heads) - 1 if names_last else 0
        first = "".join(f"<th>{escape(head)}</th>" for head in heads)
        lines = "".join(f"<tr>{_cells(heads, row, words)}</tr>" for row in rows)
        kind = ' class="stack"' if len(heads) > _MANY else ""
        yield f'<div class="wide"><table{kind}><tr>{first}</tr>{lines}</table></div>'
    if table.hint:
        yield f'<p class="hint">{escape(table.hint)}</p>'


def _cells(heads: Sequence[str], cells: Sequence[str], words: int) -> str:
    """Return the cells of a row. words: the column of text, which has a line for itself on a card."""

    def cell(column: int, head: str, text: str) -> str:
        if column == words:
            return f'<td class="words">{escape(text)}</td>'
        kind = ' class="none"' if text in ("", "-") else ""
        return f'<td{kind} data-head="{escape(head)}">{escape(text)}</td>'

    return "".join(cell(column, *pair) for column, pair in enumerate(zip(heads, cells, strict=True)))


def names_first(cells: Sequence[str]) -> list[str]:
    return [cells[-1], *cells[:-1]]
