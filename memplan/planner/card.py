"""A few figures of an object, as one line for `repr` and as HTML for a notebook: the head of the report."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from ..graphs.units import duration, format_bytes
from .device_memory import DeviceMemory
from .simulator.simulate import Figures


class Entry(NamedTuple):
    """One figure of a card.

    label: what it is. value: as text with its unit. note: a smaller line below the value.
    """

    label: str
    value: str
    note: str = ""


class Card(NamedTuple):
    """A title and a few figures of an object.

    title: what the object is. entries: its figures, the most important first.
    """

    title: str
    entries: tuple[Entry, ...]

    def line(self) -> str:
        """Return `<title: value label, …>`, without the notes."""
        return f"<{self.title}: {', '.join(f'{each.value} {each.label}' for each in self.entries)}>"

    def html(self) -> str:
        """Return a grid of the entries that takes colours and fonts of the page around it."""
        cells = "".join(map(_cell, self.entries))
        return (
            f'<div style="max-width:60rem"><b>{escape(self.title)}</b><div style="display:grid;gap:0.5rem;'
            f'grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));margin-top:0.3rem">{cells}</div></div>'
        )


def cost_entries(
    figures: Figures,
    baseline: Figures | None = None,
    budget: int | None = None,
    around: tuple[DeviceMemory, DeviceMemory] | None = None,
) -> Iterator[Entry]:
    """Yield time and peaks of a schedule.

    baseline: the figures of the schedule that keeps everything, for comparison.
    budget: bytes on the device, for comparison.
    around: peak and budget of a whole loop, instead of the schedule's.
    """
    overhead = f"{figures.time / baseline.time - 1:+z.1%} vs. baseline" if baseline and baseline.time else ""
    yield Entry("per iteration", duration(figures.time), overhead)
    peak, limit, parts = figures.peak, budget, ""
    if around is not None:
        peak, limit, parts = around[0].total, around[1].total, around[0].parts
    share = f"{peak / limit:.1%} of the budget" if limit else ""
    yield Entry("peak", format_bytes(peak), ": ".join(filter(None, (share, parts))))
    if baseline:
        yield Entry("baseline peak", format_bytes(baseline.peak))
    if figures.host_peak:
        yield Entry("host", format_bytes(figures.host_peak))
    if figures.disk_peak:
        yield Entry("disk", format_bytes(figures.disk_peak))


def _cell(entry: Entry) -> str:
    small = "opacity:0.7;font-size:0.8em"
    return (
        '<div style="border:1px solid rgba(128,128,128,0.4);border-radius:6px;padding:0.45rem 0.7rem">'
        f'<div style="{small}">{escape(entry.label)}</div><div>{escape(entry.value)}</div>'
        f'<div style="{small}">{escape(entry.note)}</div></div>'
    )
