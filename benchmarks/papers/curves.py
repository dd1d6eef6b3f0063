"""Curves over numbers as a small SVG, in light and in dark; published points are crosses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 800, 340
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 30, 280, 42
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3a9bd9", "#8a6bd1", "#808080")
_STYLE = """
svg { color: #1d2127; font: 12px system-ui, sans-serif; } .ground { fill: #fcfcfb; }
text { fill: currentColor; } .grid { stroke: #8888; stroke-width: 0.6; } path { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { svg { color: #e6e8eb; } .ground { fill: #15181c; } }
"""


def ticks(low: float, high: float) -> list[float]:
    """Four to ten round numbers, from below `low` to above `high`."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** floor(log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    first = floor(low / step)
    return [number * step for number in range(first, max(ceil(high / step), first + 1) + 1)]


def svg(
    own: Mapping[str, Points],
    published: Mapping[str, Points],
    x: str,
    y: str,
    *,
    words: Sequence[str] = (),
    log: bool = False,
) -> str:
    """ours: at least one curve with a point. A name of `published` has the colour of ours. words: what stands
    at 0, 1, 2, … of x, where x is no number: then no line joins the points."""
    points = [point for curves in (own, published) for curve in curves.values() for point in curve]
    across = sorted({point[0] for point in points})
    columns = across if log or words else ticks(across[0], across[-1])
    lines = ticks(min(point[1] for point in points), max(point[1] for point in points))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def left(value: float) -> float:
        if words:
            return _LEFT + (right - _LEFT) * (value + 0.5) / len(words)
        low, high, at = (
            (log10(columns[0]), log10(columns[-1]), log10(value)) if log else (columns[0], columns[-1], value)
        )
        return _LEFT + (right - _LEFT) * (at - low) / (high - low or 1.0)

    def up(value: float) -> float:
        return bottom - (bottom - _TOP) * (value - lines[0]) / (lines[-1] - lines[0])

    body: list[str] = []
    for value in lines:
        body.append(f'<path class="grid" d="M{_LEFT} {up(value):.1f}H{right}"/>')
        body.append(f'<text x="{_LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in columns:
        label = escape(words[round(value)]) if words else f"{value:g}"
        body.append(f'<path class="grid" d="M{left(value):.1f} {_TOP}V{bottom}"/>')
        body.append(f'<text x="{left(value):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    body.append(f'<text x="{_LEFT}" y="18">{escape(y)}</text>')
    body.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    for number, (name, curve) in enumerate(own.items()):
        recomputed, colour = divmod(number, len(_COLOURS))
        pen = f'stroke="{_COLOURS[colour]}"' + ' stroke-dasharray="6 3"' * recomputed
        places = [f"{left(a):.1f} {up(b):.1f}" for a, b in sorted(curve)]
        body += [] if words else [f'<path d="M{"L".join(places)}" {pen}/>']
        body += [
            f'<path d="M{place}h0" stroke-linecap="round" style="stroke-width:6" {pen}/>' for place in places
        ]
        body += [
            f'<path d="M{left(a) - 4:.1f} {up(b) - 4:.1f}l8 8m0 -8l-8 8" {pen}/>'
            for a, b in published.get(name, ())
        ]
        body.append(f'<path d="M{right + 14} {_TOP + 8 + 17 * number}h20" {pen}/>')
        label = escape(name) + (" (×: published)" if published.get(name) else "")
        body.append(f'<text x="{right + 40}" y="{_TOP + 12 + 17 * number}">{label}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f'<style>{_STYLE}</style><rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>'
        f"{''.join(body)}</svg>\n"
    )
