"""A page of one graph's schedules at several budgets: a slider chooses which is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from ..graphs.units import duration, format_bytes
from .picture import picture
from .still import still_page
from .subject import Subject
from .tradeoff import STYLE, Curve
from .tradeoff import picture as curve_picture

_STYLE = (
    STYLE
    + """
#budget { width: 100%; max-width: 560px; min-height: 44px; display: block; accent-color: var(--good); }
.wide svg.schedule { width: 100%; min-width: 640px; height: auto; display: block; }
.stop code { overflow-wrap: anywhere; }
"""
)
_CODE = """
const slider = document.getElementById("budget"), stops = [...document.querySelectorAll(".stop")];
const dots = document.querySelectorAll("svg.tradeoff circle.line0");
function show() {
  const chosen = Number(slider.value);
  stops.forEach((stop, k) => { stop.hidden = k !== chosen; });
  dots.forEach((dot, k) => dot.setAttribute("r", k === chosen ? 7 : 3));
  slider.setAttribute("aria-valuetext", stops[chosen].dataset.budget);
}
document.getElementById("choice").hidden = false;
slider.addEventListener("input", show);
show();
"""


class Stop(NamedTuple):
    """A place of the slider. budget: bytes. bound: seconds, 0 for none. commands: labels and commands."""

    budget: int
    subject: Subject
    bound: float
    commands: Sequence[tuple[str, str]]


def budgets_page(name: str, stops: Sequence[Stop]) -> str:
    """Return the page. stops: at least one, the smallest budget first. Raises InvalidScheduleError."""
    return still_page(f"{name} by budget", _body(name, stops), _STYLE)


def _body(name: str, stops: Sequence[Stop]) -> Iterator[str]:
    last = len(stops) - 1
    points = [(stop.budget, stop.subject.report.figures.time) for stop in stops]
    bounds = [(stop.budget, stop.bound or None) for stop in stops]
    yield f"<header><h1>{escape(name)}: time against budget</h1></header><main>"
    yield curve_picture([Curve("schedules", points), Curve("lower bound", bounds)])
    # Hidden until the code runs: without it all budgets are shown, one after the other.
    yield '<p id="choice" hidden><label for="budget">Budget, with its schedule and what to run:</label>'
    yield f'<input id="budget" type="range" min="0" max="{last}" step="1" value="{last}"></p>'
    for stop in stops:
        report, size = stop.subject.report, format_bytes(stop.budget)
        facts = [
            f"{duration(report.figures.time)}, {report.overhead:+z.1%} vs. baseline",
            f"peak {format_bytes(report.figures.peak)}",
            *([f"lower bound {duration(stop.bound)}"] if stop.bound else []),
        ]
        yield f'<section class="stop" data-budget="{size}"><h2>{size}</h2><p>{"; ".join(facts)}</p><dl>'
        for label, command in stop.commands:
            yield f"<dt>{escape(label)}</dt><dd><code>{escape(command)}</code></dd>"
        yield '</dl><div class="wide" tabindex="0" role="group" aria-label="schedule">'
        yield f"{picture(stop.subject)}</div></section>"
    yield f"</main><script>{_CODE}</script>"
