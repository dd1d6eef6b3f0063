"""Step curves of shares as SVG that needs no library and no network, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log
from textwrap import wrap

from .profiles import TARGETS, Curve, performance_profiles, times_to_gap
from .trials import Row

FACTORS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 3.0, 5.0, *(10.0**k for k in range(1, 10)))
SECONDS = tuple(digit * 10.0**k for k in range(-3, 7) for digit in (1, 2, 5))
"""Values at which an axis may have a tick."""

_WIDTH, _HEIGHT = 380, 290
"""Pixels of a figure without its legend. It is as wide as a phone: what scrolls sideways is not seen."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 48, 44, 14, 44
_TITLE, _NAME = 54, 22
"""Most letters of a line of the title, and of a name in the legend."""
_COLOURS = ("#1f83c4", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3a9bd9", "#8a6bd1", "#808080")
"""Colours for colour-blind readers: Okabe and Ito's, those darkened that are pale on white."""
_DASHES = ("none", "7 3", "2 3")
_APART, _LINE = 46, 17
"""Minimum distance between two ticks, and distance between two names, pixels."""
_STYLE = """
.curves { color: #1d2127; font: 12px system-ui, sans-serif; }
.curves .ground { fill: #fcfcfb; } .curves text { fill: currentColor; }
.curves .grid { stroke: #8888; stroke-width: 0.6; } .curves path { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { .curves { color: #e6e8eb; } .curves .ground { fill: #15181c; } }
"""


def plots(rows: Sequence[Row]) -> dict[str, str]:
    """Return the SVGs by name: the performance profile, and for each of TARGETS the time to that gap.

    A gap that no solver reaches has no figure.
    """
    found: dict[str, str] = {}
    profiles = performance_profiles(rows)
    pens = [curve.solver for curve in profiles]
    if profiles:
        title = f"Performance profile: share of {profiles[0].problems} problems within τ times the fastest"
        found["profile"] = step_plot(profiles, title, "τ: time / fastest time", FACTORS, pens)
    for target in TARGETS:
        curves = times_to_gap(rows, target)
        if any(curve.steps for curve in curves):
            title = f"Share of {curves[0].problems} problems within {target:.0%} of the lower bound"
            found[f"within-{100 * target:g}-percent"] = step_plot(curves, title, "seconds", SECONDS, pens)
    return found


def step_plot(
    curves: Sequence[Curve], title: str, axis: str, ticks: Sequence[float], pens: Sequence[str]
) -> str:
    """Return an <svg> of shares (upwards, 0 to 100 %) over a logarithmic axis.

    curves: at least one.
    ticks: possible ticks, ascending. The axis begins at the last one below all steps; ticks without room are
        left out.
    pens: the solvers, whose indices here determine their colours.
    """
    steps = [step for curve in curves for step in curve.steps]
    first = max(0, sum(tick <= min(steps, default=0.0) for tick in ticks) - 1)
    plot = _Plot(ticks[first], max([*steps, ticks[first + 1]]) * 1.02, len(curves))
    body = [*plot.grid(ticks), *plot.words(title, axis)]
    for number, curve in enumerate(curves):
        body += plot.curve(curve, number, pens.index(curve.solver))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" viewBox="0 0 {_WIDTH} {plot.height}" '
        f'role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect class="ground" width="{_WIDTH}" height="{plot.height}"/>{"".join(body)}</svg>'
    )


class _Plot:
    """Coordinates of a figure in pixels, and its elements."""

    def __init__(self, low: float, high: float, names: int) -> None:
        self.low, self.high = low, high
        self.height = _HEIGHT + _LINE * -(-names // 2) + 8  # a legend of two columns below

    def x(self, value: float) -> float:
        share = log(max(value, self.low) / self.low) / log(self.high / self.low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, share: float) -> float:
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self, ticks: Sequence[float]) -> Iterator[str]:
        left, right, lowest = _LEFT, _WIDTH - _RIGHT, self.y(0)
        for percent in range(0, 101, 25):
            y = self.y(percent / 100)
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>'
        free = 0.0
        for tick in ticks:
            x = self.x(tick)
            if self.low <= tick <= self.high and x >= free:
                yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{lowest:.1f}"/>'
                yield f'<text x="{x:.1f}" y="{lowest + 16:.1f}" text-anchor="middle">{tick:g}</text>'
                free = x + _APART

    def words(self, title: str, axis: str) -> Iterator[str]:
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        for place, line in enumerate(wrap(title, _TITLE)[:2]):
            yield f'<text x="8" y="{14 + 16 * place}" font-weight="600">{escape(line)}</text>'
        yield f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>'

    def curve(self, curve: Curve, place: int, number: int) -> Iterator[str]:
        """Yield a curve's line, and its name in the legend at this place."""
        # Solvers beyond the last colour have the same colours, dashed.
        dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        pen = f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-dasharray="{dash}"'
        name = escape(curve.solver)
        share = (
            f"{name}: {curve.share(self.low):.0%} at {self.low:g}, {curve.share(self.high):.0%} in the end"
        )
        line = f"M{self.x(self.low):.1f} {self.y(curve.share(self.low)):.1f}"
        # Equal steps are one: the share there counts them all.
        for step in dict.fromkeys(step for step in curve.steps if step > self.low):
            line += f"H{self.x(step):.1f}V{self.y(curve.share(step)):.1f}"
        yield f'<path d="{line}H{self.x(self.high):.1f}" {pen}><title>{share}</title></path>'
        left, y = 8 + _WIDTH // 2 * (place % 2), _HEIGHT + 8 + _LINE * (place // 2)
        yield f'<path d="M{left} {y}h22" {pen}/>'
        short = curve.solver if len(curve.solver) <= _NAME else f"{curve.solver[: _NAME - 1]}…"
        yield f'<text x="{left + 28}" y="{y + 4}">{escape(short)}<title>{name}</title></text>'
