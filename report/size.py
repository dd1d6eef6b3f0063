"""The page of `plan size`: tables, and a figure of speed and memory batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from ..comparison.tables import Table
from ..graphs.units import format_bytes
from ..planner.sizing.estimate_range import Span
from .still import html_table, still_page
from .tradeoff import STYLE as CURVE_STYLE
from .tradeoff import Curve
from .tradeoff import picture as curve_picture

_STYLE = """
svg.batches { width: 100%; max-width: 760px; height: auto; display: block; margin: 0.6rem 0; }
.batches text { fill: currentColor; font: 12px system-ui, sans-serif; }
.batches .rate { fill: #7fa8c9; } .batches .best { fill: var(--good); }
.batches .span { stroke: currentColor; stroke-width: 1.5; } .batches .mark { fill: currentColor; }
p.answer { font-size: 1.1rem; }
"""
_WIDTH, _ROW, _LEFT, _MIDDLE, _RIGHT = 760, 22, 70, 400, 690


class Bar(NamedTuple):
    """A batch that fits. needs: bytes of the device."""

    batch: str
    samples_per_second: float
    best: bool
    needs: Span | None


class Section(NamedTuple):
    table: Table
    bars: tuple[Bar, ...] = ()
    answer: str = ""
    curves: tuple[Curve, ...] = ()


def page(title: str, sections: Iterable[Section], origin: Sequence[str]) -> str:
    """Return the page as self-contained HTML. origin: how it was made, a line each."""
    return still_page(title, _body(title, sections, origin), _STYLE + CURVE_STYLE)


def _body(title: str, sections: Iterable[Section], origin: Sequence[str]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    for section in sections:
        head = section.table._replace(rows=[], hint="")
        yield from html_table(head)
        if section.answer:
            yield f'<p class="answer">{escape(section.answer)}</p>'
        if section.bars:
            yield _picture(section.bars)
        yield curve_picture(section.curves)
        yield from html_table(section.table._replace(title=""))
    yield f"<footer>{'<br>'.join(map(escape, origin))}</footer>"


def _picture(bars: Sequence[Bar]) -> str:
    """Return the figure: on the left a bar of samples per second, on the right a line from low to high.

    A dot on the line marks the expected memory.
    """
    fastest = max(bar.samples_per_second for bar in bars) or 1.0
    most = max((bar.needs.high for bar in bars if bar.needs), default=0.0) or 1.0
    height = _ROW * (len(bars) + 1)
    rows = "".join(_row(number, bar, fastest, most) for number, bar in enumerate(bars, 1))
    return (
        f'<svg class="batches" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="samples a second and memory, batch by batch">'
        f'<text x="0" y="14">batch</text><text x="{_LEFT}" y="14">samples/s</text>'
        f'<text x="{_MIDDLE}" y="14">memory, low to high</text>{rows}</svg>'
    )


def _rate(samples_per_second: float) -> str:
    """Return a rate with at least three digits, never with an exponent: '1,061', '12.3'."""
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"


def _row(number: int, bar: Bar, fastest: float, most: float) -> str:
    top, middle = _ROW * number, _ROW * number + _ROW / 2
    width = (_MIDDLE - _LEFT - 90) * bar.samples_per_second / fastest
    kind = "best" if bar.best else "rate"
    parts = [
        f'<text x="0" y="{middle + 4}">{escape(bar.batch)}</text>',
        f'<rect class="{kind}" x="{_LEFT}" y="{top + 4}" width="{width:.1f}" height="{_ROW - 8}"/>',
        f'<text x="{_LEFT + width + 6:.1f}" y="{middle + 4}">{_rate(bar.samples_per_second)}</text>',
    ]
    if bar.needs is not None:
        low, dot, high = (_MIDDLE + (_RIGHT - _MIDDLE) * value / most for value in bar.needs)
        parts += [
            f'<line class="span" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
            f'<circle class="mark" cx="{dot:.1f}" cy="{middle}" r="3"/>',
            f'<text x="{high + 6:.1f}" y="{middle + 4}">{format_bytes(int(bar.needs.expected))}</text>',
        ]
    return "".join(parts)
