"""A schedule as one SVG for a paper or a slide: memory by kind over time, the queues below.

Each column of pixels shows the highest moment in it, as on the page. It is one iteration of the steady state:
work of the iteration before that reaches into this one is drawn from the start on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

import numpy as np

from ..graphs.arrays import Floats, Ints
from ..graphs.graph import Kind, Phase
from ..graphs.machine import Memory
from ..graphs.units import format_bytes
from ..planner.addresses.lifetimes import lifetimes
from ..planner.baseline import any_size, baseline, baseline_schedule
from ..planner.schedule.schedule import Verb
from ..planner.simulator.timeline import NOTHING, Timeline, timeline
from .colours import COPY, KIND, PHASE, RECOMPUTED
from .memory_timeline import moments, passed
from .subject import Subject, queue_index, queue_words

COLUMNS = 900
"""Width of the time axis, pixels."""
_LEFT, _TOP, _HEIGHT, _ROW, _GAP = 112, 54, 280, 20, 8
_STYLE = """
.schedule { color: #1d2127; font: 12px system-ui, sans-serif; } .schedule text { fill: currentColor; }
.schedule .ground { fill: #fcfcfb; } .schedule .grid { stroke: #8886; stroke-width: 0.6; }
.schedule .baseline { fill: none; stroke: #8a94a0; stroke-dasharray: 3 2; }
.schedule .budget { stroke: #d1495b; stroke-width: 1.4; }
@media (prefers-color-scheme: dark) {
  .schedule { color: #e6e8eb; } .schedule .ground { fill: #15181c; }
}
"""
Fill = tuple[str, float]
"""A colour, and the share of the column that it covers, in quarters."""


def picture(subject: Subject) -> str:
    """Return the schedule as an <svg>. Raises InvalidScheduleError."""
    graph, schedule, figures = subject.graph, subject.schedule, subject.report.figures
    line = timeline(graph, schedule, budget=subject.budget, machine=subject.machine)
    end = max(line.period, float(passed(line)[-1]))
    edges = np.linspace(0.0, end, COLUMNS + 1)
    rows = lifetimes(graph, schedule, Memory.DEVICE, budget=subject.budget, machine=subject.machine)
    found = moments(graph, line, rows)
    stacked = np.cumsum(highest(found.at, found.sums, edges), axis=1)
    baseline_at, baseline_bytes = _baseline_bytes(subject)
    ceiling = max(figures.peak, subject.budget or 0, int(baseline_bytes.max(initial=0)), 1)
    words = queue_words(subject.memories)
    queues = sorted({queue for queue in line.queue.tolist() if queue != NOTHING})
    bottom = _TOP + _HEIGHT + 26
    height = bottom + len(queues) * (_ROW + _GAP) + 54
    body = [
        *_words(subject),
        *_legend("memory", _kinds(found.sums), height - 42, dashed="baseline"),
        *_legend("queues", _work(subject, line), height - 22),
        *_grid(ceiling, end, bottom),
        *_stack(stacked, ceiling),
        *_baseline_curve(baseline_at / end if end else baseline_at, baseline_bytes, ceiling),
        *_budget(subject.budget, ceiling),
    ]
    for place, queue in enumerate(queues):
        word = words[queue_index(queue, subject.memories)]
        body += _queue(word, bottom + place * (_ROW + _GAP), _fills(subject, line, queue, edges))
    width = _LEFT + COLUMNS + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="schedule" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(graph.name)}"><style>{_STYLE}</style>'
        f'<rect class="ground" width="{width}" height="{height}"/>{"".join(body)}</svg>\n'
    )


def highest(at: Floats, sums: Ints, edges: Floats) -> Ints:
    """Return per column the row of `sums` with the largest total that holds at some time in it.

    at: seconds at which each row begins to hold, ascending, shape (moments,).
    sums: bytes, shape (moments, kinds).
    edges: seconds, shape (columns + 1,).
    Returns bytes, shape (columns, kinds).
    """
    if not len(at):
        return np.zeros((len(edges) - 1, sums.shape[1]), np.int64)
    total = sums.sum(axis=1)
    # The row at the left edge began before it, or at it.
    first = np.maximum(np.searchsorted(at, edges[:-1], side="right") - 1, 0)
    last = np.maximum(np.searchsorted(at, edges[1:], side="left"), first + 1)
    # Moments at the very end are in the last column.
    last[-1] = len(at)
    return sums[[a + int(total[a:b].argmax()) for a, b in zip(first.tolist(), last.tolist(), strict=True)]]


def busy(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return the seconds of each column that disjoint intervals cover, shape (columns,)."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    order = np.argsort(start, kind="stable")
    when = np.stack([start[order], end[order]], axis=1).ravel()
    lengths = (end - start)[order]
    done = np.stack([np.cumsum(lengths) - lengths, np.cumsum(lengths)], axis=1).ravel()
    # The busy time so far is linear within intervals and constant between them: interpolation is exact.
    return np.diff(np.interp(edges, when, done))


def folded(start: Floats, end: Floats, period: float) -> tuple[Floats, Floats]:
    """Return the parts of repeated intervals within one period. No interval is longer than a period."""
    begun = np.mod(start, period) if period else start
    ended = begun + (end - start)
    over = ended > period
    return (
        np.concatenate((begun, np.zeros(int(over.sum())))),
        np.concatenate((np.minimum(ended, period), ended[over] - period)),
    )


def _fills(subject: Subject, line: Timeline, queue: int, edges: Floats) -> list[Fill]:
    """Return per column the colour that covers most of it."""
    here = line.queue == queue
    colours = _colours(subject)[here]
    start, end = line.start[here], line.end[here]
    names = sorted(set(colours.tolist()))
    period = float(edges[-1])
    shares = np.stack([busy(*folded(start[colours == x], end[colours == x], period), edges) for x in names])
    # An iteration of no time has columns of no width.
    lengths = np.maximum(np.diff(edges), np.finfo(np.float64).tiny)
    # Rounded up to quarters, so that short work stays visible; rounding errors are no work.
    parts = np.ceil(4 * np.minimum(shares.sum(axis=0) / lengths, 1.0) - 1e-6) / 4
    return [(names[which], part) for which, part in zip(shares.argmax(axis=0), parts.tolist(), strict=True)]


def _colours(subject: Subject) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """Return the colour of each step: the phase's for first runs, others for recomputations and copies."""
    schedule, phases = subject.schedule, subject.graph.operations.phase
    seen: set[int] = set()
    found: list[str] = []
    for verb, target, _where in schedule.rows():
        if verb != Verb.COMPUTE:
            # Deletes as well: they are in no queue, and are not drawn.
            found.append(COPY)
        else:
            found.append(RECOMPUTED if target in seen else PHASE[int(phases[target])])
            seen.add(target)
    return np.array(found)


def _baseline_bytes(subject: Subject) -> tuple[Floats, Ints]:
    schedule, machine = baseline_schedule(subject.graph), any_size(subject.graph)
    size = baseline(subject.graph).peak  # in more memory collectives would come earlier
    line = timeline(subject.graph, schedule, budget=size, machine=machine)
    found = moments(subject.graph, line, lifetimes(subject.graph, schedule, budget=size, machine=machine))
    return found.at, found.sums.sum(axis=1)


def _y(size: float, ceiling: int) -> float:
    return _TOP + _HEIGHT * (1.0 - size / ceiling)


def _words(subject: Subject) -> Iterator[str]:
    report = subject.report
    time, baseline = report.figures.time, report.baseline.time
    above = "" if report.above is None else f", at most {report.above:z.1%} above the fastest there can be"
    over = f"{time / baseline - 1.0:+z.1%} time" if baseline else f"{time:.3g} s"
    yield f'<text x="{_LEFT}" y="20" font-weight="600">{escape(subject.graph.name)}</text>'
    peak = f"peak {format_bytes(report.figures.peak)}, baseline {format_bytes(report.baseline.peak)}"
    yield f'<text x="{_LEFT}" y="38">{peak}; {over}{above}</text>'


def _kinds(sums: Ints) -> list[tuple[str, str]]:
    """Return name and colour of the kinds that have bytes at some time."""
    words = [*(kind.word.replace("_", " ") for kind in Kind), "workspace"]
    return [(words[kind], KIND[kind]) for kind in np.flatnonzero(sums.any(axis=0)).tolist()]


def _work(subject: Subject, line: Timeline) -> list[tuple[str, str]]:
    """Return word and colour of each sort of work in the queues."""
    words = {colour: phase.word for phase, colour in zip(Phase, PHASE, strict=True)}
    words |= {RECOMPUTED: "recomputed", COPY: "transfers"}
    there = set(_colours(subject)[line.queue != NOTHING].tolist())
    return [(word, colour) for colour, word in words.items() if colour in there]


def _legend(name: str, words: list[tuple[str, str]], y: int, dashed: str = "") -> Iterator[str]:
    yield f'<text x="{_LEFT - 8}" y="{y + 9}" text-anchor="end">{name}</text>'
    x = float(_LEFT)
    for word, colour in words:
        yield f'<rect x="{x:.0f}" y="{y}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14:.0f}" y="{y + 9}">{word}</text>'
        x += 26 + 6.4 * len(word)
    if dashed:
        yield f'<path class="baseline" d="M{x:.0f} {y + 5}h20"/>'
        yield f'<text x="{x + 26:.0f}" y="{y + 9}">{dashed}</text>'


def _grid(ceiling: int, end: float, bottom: int) -> Iterator[str]:
    for part in range(5):
        y = _TOP + _HEIGHT * part / 4
        yield f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + COLUMNS}" y1="{y:.0f}" y2="{y:.0f}"/>'
        size = format_bytes(round(ceiling * (4 - part) / 4))
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{size}</text>'
    for part in range(5):
        x = _LEFT + COLUMNS * part / 4
        text = f"{end * part / 4:.3g} s"
        yield f'<text x="{x:.0f}" y="{bottom - 10}" text-anchor="{_anchor(part)}">{text}</text>'


def _anchor(part: int) -> str:
    return {0: "start", 4: "end"}.get(part, "middle")


def _stack(stacked: Ints, ceiling: int) -> Iterator[str]:
    """Yield one area per kind, the last first: each covers what is above the one below."""
    for kind in reversed(range(stacked.shape[1])):
        tops = stacked[:, kind].tolist()
        if not any(tops):
            continue
        path, x = f"M{_LEFT} {_y(0, ceiling):.1f}", _LEFT
        for top, columns in groupby(tops):
            x += len(list(columns))
            path += f"V{_y(top, ceiling):.1f}H{x}"
        yield f'<path d="{path}V{_y(0, ceiling):.1f}Z" fill="{KIND[kind]}"/>'


def _baseline_curve(at: Floats, sizes: Ints, ceiling: int) -> Iterator[str]:
    """Yield the baseline's curve. at: shares of the width; what is later than the schedule's end is cut."""
    path = ""
    for share, size in zip(at.tolist(), sizes.tolist(), strict=True):
        x = _LEFT + COLUMNS * min(share, 1.0)
        path += f"{'H' if path else 'M'}{x:.1f}{'V' if path else ' '}{_y(size, ceiling):.1f}"
    if path:
        yield f'<path class="baseline" d="{path}"><title>baseline: everything kept</title></path>'


def _budget(budget: int | None, ceiling: int) -> Iterator[str]:
    if budget is not None:
        y, right = _y(budget, ceiling), _LEFT + COLUMNS
        yield f'<line class="budget" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{right}" y="{y - 4:.1f}" text-anchor="end">budget {format_bytes(budget)}</text>'


def _queue(name: str, y: int, fills: Sequence[Fill]) -> Iterator[str]:
    yield f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{name}</text>'
    x = _LEFT
    for (colour, part), columns in groupby(fills):
        width = len(list(columns))
        if part:
            faint = "" if part == 1.0 else f' opacity="{part:g}"'
            yield f'<rect x="{x}" y="{y}" width="{width}" height="{_ROW}" fill="{colour}"{faint}/>'
        x += width
