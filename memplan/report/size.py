"""The page of `plan size`: tables, and a figure of speed and memory batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from ..comparison.tables import Table
from ..graphs.units import format_bytes
from .page import ASSETS
from .still import html_table, still_page
from .tradeoff import STYLE as CURVE_STYLE
from .tradeoff import Curve
from .tradeoff import picture as curve_picture

_STYLE = """
.batches { display: flex; flex-wrap: wrap; gap: 0.6rem 2rem; margin: 0.6rem 0; }
.batches svg { flex: 1 1 340px; max-width: 460px; height: auto; }
.batches text { fill: currentColor; font: 12px system-ui, sans-serif; }
.batches .rate { fill: #7fa8c9; } .batches .best { fill: var(--good); }
.batches .span { stroke: currentColor; stroke-width: 1.5; } .batches .mark { fill: currentColor; }
.filter { display: flex; flex-wrap: wrap; gap: 0.4rem 1.2rem; align-items: baseline; margin: 0.6rem 0; }
.filter input { font: inherit; width: 9rem; color: inherit; background: var(--ground); }
.filter input { border: 1px solid var(--line); border-radius: 4px; padding: 0.15rem 0.4rem; }
.filter + .wide th { cursor: pointer; }
.filter + .wide tr[hidden] { display: none; }
@media (scripting: none) { .filter { display: none; } }
p.answer { font-size: 1.1rem; }
"""
_WIDTH, _ROW, _BASE, _LEFT, _RIGHT = 380, 22, 15, 64, 306
"""Pixels: width and height of a row, the baseline of its text, the ends of the longest bar."""


class Bar(NamedTuple):
    """A batch that fits. needs: low, expected and high bytes of the device."""

    batch: str
    samples_per_second: float
    best: bool
    needs: tuple[float, float, float] | None


class Filter(NamedTuple):
    """A field that chooses rows of a table.

    column: its head. most: whether a number is the most that is shown, or the least; None: a text to find.
    """

    label: str
    column: str
    most: bool | None = None


class Section(NamedTuple):
    """A table with figures and a line above it.

    untitled: a terminal shows it without its title. filters: fields above the table that choose its rows.
    """

    table: Table
    bars: tuple[Bar, ...] = ()
    answer: str = ""
    curves: tuple[Curve, ...] = ()
    untitled: bool = False
    filters: tuple[Filter, ...] = ()


def page(title: str, sections: Iterable[Section], origin: Sequence[str]) -> str:
    """Return the page as self-contained HTML. origin: how it was made, a line each."""
    return still_page(title, _body(title, [*sections], origin), _STYLE + CURVE_STYLE)


def _body(title: str, sections: Sequence[Section], origin: Sequence[str]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield sections_html(sections)
    yield f"<footer>{'<br>'.join(map(escape, origin))}</footer>"
    if any(section.filters for section in sections):
        yield f"<script>{(ASSETS / 'filter.js').read_text(encoding='utf-8')}</script>"


def sections_html(sections: Iterable[Section]) -> str:
    """Return the sections alone, as HTML."""
    return "\n".join(_sections(sections))


def _sections(sections: Iterable[Section]) -> Iterator[str]:
    for section in sections:
        # The title alone: the rows come after the answer and the figures.
        head = section.table._replace(rows=[], hint="")
        yield from html_table(head)
        if section.answer:
            yield f'<p class="answer">{escape(section.answer)}</p>'
        if section.bars:
            yield from _picture(section.bars)
        yield curve_picture(section.curves)
        if section.filters and section.table.rows:
            yield from _form(section)
        # A last column without a head has verdicts, not names.
        verdicts = section.table.heads[-1:] == [""] and section.table.heads[0] == "batch"
        yield from html_table(section.table._replace(title=""), names_last=verdicts)


def _form(section: Section) -> Iterator[str]:
    """Yield the fields above a table; without scripts they are not shown."""
    yield '<form class="filter">'
    for label, column, most in section.filters:
        kind = 'type="search"' if most is None else 'type="number" min="0" step="any"'
        bound = ' data-most="1"' if most else ""
        yield f'<label>{escape(label)} <input name="{escape(column)}" {kind}{bound}></label>'
    count = len(section.table.rows)
    yield f"<output>{count} of {count}</output></form>"


def _picture(bars: Sequence[Bar]) -> Iterator[str]:
    """Yield the figure: bars of samples per second, and lines of memory from low to high.

    A dot on a line marks the expected memory. On a phone the second half is below the first.
    """
    # or 1.0: with rates of 0 bars have no length.
    fastest = max(bar.samples_per_second for bar in bars) or 1.0
    most = max((bar.needs[2] for bar in bars if bar.needs), default=0.0) or 1.0
    yield '<div class="batches">'
    yield _half("samples/s", "samples per second", [_rate_row(bar, fastest) for bar in bars], bars)
    yield _half("memory, low to high", "memory", [_memory_row(bar, most) for bar in bars], bars)
    yield "</div>"


def _half(head: str, label: str, rows: Sequence[str], bars: Sequence[Bar]) -> str:
    lines = "".join(
        f'<g transform="translate(0 {_ROW * number})">'
        f'<text x="0" y="{_BASE}">{escape(bar.batch)}</text>{row}</g>'
        for number, (bar, row) in enumerate(zip(bars, rows, strict=True), 1)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_ROW * (len(bars) + 1)}" role="img" '
        f'aria-label="{label}, batch by batch">'
        f'<text x="0" y="14">batch</text><text x="{_LEFT}" y="14">{head}</text>{lines}</svg>'
    )


def _rate(samples_per_second: float) -> str:
    """Return a rate with at least three digits, never with an exponent: '1,061', '12.3'."""
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"


def _rate_row(bar: Bar, fastest: float) -> str:
    width, kind = (_RIGHT - _LEFT) * bar.samples_per_second / fastest, "best" if bar.best else "rate"
    return (
        f'<rect class="{kind}" x="{_LEFT}" y="4" width="{width:.1f}" height="{_ROW - 8}"/>'
        f'<text x="{_LEFT + width + 6:.1f}" y="{_BASE}">{_rate(bar.samples_per_second)}</text>'
    )


def _memory_row(bar: Bar, most: float) -> str:
    if bar.needs is None:
        return ""
    low, dot, high = (_LEFT + (_RIGHT - _LEFT) * value / most for value in bar.needs)
    middle = _ROW / 2
    return (
        f'<line class="span" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
        f'<circle class="mark" cx="{dot:.1f}" cy="{middle}" r="3"/>'
        f'<text x="{high + 6:.1f}" y="{_BASE}">{format_bytes(int(bar.needs[1]))}</text>'
    )
