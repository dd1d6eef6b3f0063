"""A picture of a plan for the pages: device memory over one iteration, by kind; another schedule's dashed.

README's picture and those of the gallery are drawn by it: readme_picture.py and gallery.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

import numpy as np
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Machine, Memory
from memplan.graphs.units import duration, format_bytes
from memplan.planner.addresses.lifetimes import lifetimes
from memplan.planner.schedule.schedule import Schedule
from memplan.planner.simulator.timeline import timeline
from memplan.report.colours import KIND
from memplan.report.memory_timeline import KINDS, moments
from memplan.report.picture import highest

LEFT, TOP, WIDTH, HEIGHT = 64, 70, 660, 300
"""The frame of the curves: pixels."""
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1d2127; } text.soft { fill: #626a75; }
.title { font-weight: 600; } .ground { fill: #fcfcfb; }
.eager { fill: none; stroke: #626a75; stroke-width: 1.6; stroke-dasharray: 5 4; }
.card { stroke: #b3261e; stroke-width: 1.6; } .arrow { fill: none; stroke: #1d2127; stroke-width: 1.3; }
.head { fill: #1d2127; } text.inside { fill: #fff; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text, .head { fill: #e6e8eb; } text.soft { fill: #98a1ac; } text.inside { fill: #fff; }
  .ground { fill: #15181c; }
  .eager { stroke: #98a1ac; } .card { stroke: #ff8a80; } .arrow { stroke: #e6e8eb; }
}
"""
_NAMES: Mapping[int, str] = {
    Kind.OPTIMIZER_STATE: "optimizer states",
    Kind.PARAMETER: "weights",
    Kind.ACTIVATION: "activations",
    Kind.GRADIENT: "gradients of activations",
    Kind.PARAMETER_GRADIENT: "gradients of weights",
    Kind.INPUT: "inputs",
    KINDS.index("workspace"): "workspace",
}
_TICKS = 5
"""Sizes that are written on the left, at most."""

Point = tuple[float, float]
"""Pixels from the left and from the top."""


class Curve:
    """Bytes on the device over one iteration, by kind, in columns. seconds: of the iteration."""

    def __init__(self, graph: Graph, schedule: Schedule, machine: Machine | None, budget: int | None) -> None:
        line = timeline(graph, schedule, budget=budget, machine=machine)
        rows = lifetimes(graph, schedule, Memory.DEVICE, budget=budget, machine=machine)
        found = moments(graph, line, rows)
        self.seconds = max(line.period, float(found.at[-1]))
        self.sums = highest(found.at, found.sums, np.linspace(0.0, self.seconds, WIDTH + 1))

    @property
    def peak(self) -> int:
        return int(self.sums.sum(axis=1).max())

    @property
    def peak_share(self) -> float:
        """Return where its peak is in the iteration, from 0 to 1."""
        return int(np.argmax(self.sums.sum(axis=1))) / WIDTH


class Picture:
    """Where bytes and seconds are in the picture.

    plan: filled, by kind. dashed: the curve to compare with, called `other`. limit: bytes of the red line.
    """

    def __init__(self, plan: Curve, dashed: Curve, limit: int, other: str = "eager PyTorch") -> None:
        self.plan, self.dashed, self.limit, self.other = plan, dashed, limit, other
        self.ceiling = 1.12 * max(dashed.peak, plan.peak, limit)
        self.longest = max(dashed.seconds, plan.seconds)

    def x(self, curve: Curve, share: float) -> float:
        """Return the pixel of a share of a curve's iteration."""
        return LEFT + WIDTH * share * curve.seconds / self.longest

    def y(self, size: float) -> float:
        return TOP + HEIGHT * (1 - size / self.ceiling)

    def svg(self, title: str, note: str, marks: Iterable[str] = ()) -> str:
        """Return the picture. note: below the title. marks: elements on top of the curves."""
        foot = TOP + HEIGHT + 28
        body = [text(title, LEFT, 24, "title"), text(note, LEFT, 44, "soft")]
        step = _step(self.ceiling)
        for size in range(0, int(self.ceiling) + 1, step):
            label = format_bytes(size).replace(".00", "")
            body.append(text(label, LEFT - 8, self.y(size) + 4, "soft", "end"))
        body.append(text(duration(self.longest), LEFT + WIDTH, foot - 10, "soft", "end"))
        width = round(self.x(self.plan, 1) - LEFT)
        stacked = np.cumsum(self.plan.sums, axis=1)
        for kind in reversed(range(stacked.shape[1])):
            if self.plan.sums[:, kind].any():
                path = self._path(stacked[:, kind].tolist(), width)
                body.append(f'<path d="{path}V{self.y(0):.0f}H{LEFT}Z" fill="{KIND[kind]}"/>')
        tops = self.dashed.sums.sum(axis=1).tolist()
        curve = self._path(tops, round(self.x(self.dashed, 1) - LEFT))
        y = self.y(self.limit)
        body.append(f'<path class="eager" d="{curve}"/>')
        body.append(f'<line class="card" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body += marks
        legend, end = self._legend(foot)
        body += legend
        size, name = f'viewBox="0 0 {LEFT + WIDTH + 16} {end:.0f}"', escape(title)
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        head += 'orient="auto">'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">'
            f'<style>{_STYLE}</style><defs>{head}<path class="head" d="M0,0 L8,4 L0,8 Z"/></marker></defs>'
            f'<rect class="ground" width="100%" height="100%"/>{"".join(body)}</svg>\n'
        )

    def _path(self, tops: list[int], width: int) -> str:
        """Return a step curve over the first `width` pixels."""
        path, x = f"M{LEFT},{self.y(tops[0]):.1f}", float(LEFT)
        for top, columns in groupby(tops):
            x += len(list(columns)) * width / len(tops)
            path += f"V{self.y(top):.1f}H{x:.1f}"
        return path

    def _legend(self, y: float) -> tuple[list[str], float]:
        """Return the legend, and where its last row ends: entries that have no room are in a second row."""
        kinds = [kind for kind in _NAMES if self.plan.sums[:, kind].max() > 0.01 * self.plan.peak]
        found, x = list[str](), float(LEFT)
        for kind in (*kinds, None):
            word = self.other if kind is None else _NAMES[kind]
            mark, width = (30, 6.8 * len(word) + 44) if kind is None else (16, 6.8 * len(word) + 30)
            if x + width > LEFT + WIDTH + 16:
                x, y = float(LEFT), y + 22
            if kind is None:
                found.append(f'<path class="eager" d="M{x:.0f},{y + 6:.0f} h24"/>')
            else:
                found.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="11" height="11" fill="{KIND[kind]}"/>')
            found.append(text(word, x + mark, y + 10))
            x += width
        return found, y + 24


def _step(ceiling: float) -> int:
    """Return bytes between the sizes on the left: a power of two."""
    step = 1
    while ceiling / step > _TICKS:
        step *= 2
    return step


def text(line: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text. kind: its class."""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(line)}</text>'


def arrow(lines: Sequence[str], at: Point, start: Point, end: Point, kind: str = "") -> Iterator[str]:
    """Yield lines of text that begin at a point, and an arrow. kind: class of the text."""
    yield from (text(line, at[0], at[1] + 17 * number, kind) for number, line in enumerate(lines))
    path = f"M{start[0]:.0f},{start[1]:.0f} L{end[0]:.0f},{end[1]:.0f}"
    yield f'<path class="arrow" marker-end="url(#head)" d="{path}"/>'
