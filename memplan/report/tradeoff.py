"""A figure of time against memory, a line for each way to train."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..graphs.units import duration, format_bytes

STYLE = """
svg.tradeoff { width: 100%; max-width: 560px; height: auto; display: block; margin: 0.6rem 0; }
.tradeoff text { fill: currentColor; font: 12px system-ui, sans-serif; }
@media (max-width: 700px) { .tradeoff text { font-size: 16px; } }
.tradeoff path { fill: none; stroke-width: 2; }
.tradeoff .line0 { stroke: #b0783f; } .tradeoff .line1 { stroke: var(--good); }
.tradeoff circle.line0 { fill: #b0783f; } .tradeoff circle.line1 { fill: var(--good); }
.tradeoff .axis { stroke: currentColor; stroke-width: 1; }
"""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 240, 70, 500, 24, 200


class Curve(NamedTuple):
    """A line. points: bytes and seconds, None where nothing fits."""

    name: str
    points: Sequence[tuple[int, float | None]]


def picture(curves: Sequence[Curve]) -> str:
    """Return the figure as SVG: memory to the right, seconds upwards, both from 0; empty without points."""
    there = [point for curve in curves for point in curve.points if point[1] is not None]
    if not there:
        return ""
    most_bytes = max(size for size, _seconds in there)
    most_seconds = max(seconds or 0.0 for _size, seconds in there) or 1.0

    def place(size: int, seconds: float) -> tuple[float, float]:
        right = _LEFT + (_RIGHT - _LEFT) * size / most_bytes
        return right, _BOTTOM - (_BOTTOM - _TOP) * seconds / most_seconds  # y grows downwards in SVG

    parts = [
        f'<svg class="tradeoff" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="time of an iteration against memory">',
        f'<path class="axis" d="M{_LEFT},{_TOP} V{_BOTTOM} H{_RIGHT}"/>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{duration(most_seconds)}</text>',
        f'<text x="{_LEFT - 6}" y="{_BOTTOM}" text-anchor="end">0</text>',
        f'<text x="{_LEFT}" y="{_BOTTOM + 18}">0 B</text>',
        f'<text x="{_RIGHT}" y="{_BOTTOM + 18}" text-anchor="end">{format_bytes(most_bytes)}</text>',
        f'<text x="{_LEFT}" y="{_BOTTOM + 34}">time of an iteration against memory</text>',
    ]
    for number, curve in enumerate(curves):
        dots = [place(size, seconds) for size, seconds in sorted(curve.points) if seconds is not None]
        if dots:
            kind, (right, top) = f"line{number}", dots[0]
            parts.append(f'<path class="{kind}" d="M{" L".join(f"{x:.1f},{y:.1f}" for x, y in dots)}"/>')
            parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in dots]
            # Names stand at the left ends, one above and one below, so that they don't meet.
            shift = -8 if number == 0 else 16
            parts.append(f'<text x="{right - 8:.1f}" y="{top + shift:.1f}">{escape(curve.name)}</text>')
    return "".join((*parts, "</svg>"))
