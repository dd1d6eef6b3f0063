"""What `plan size` found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from ..graphs.units import duration, format_bytes
from ..planner.budget import spelled
from ..planner.report import Report
from ..planner.sizing import Trial
from .figures import signed
from .output import Row, labelled, table
from .size_search import Found


def trial_document(one: Trial) -> dict[str, Any]:
    figures = one.figures
    return {
        "batch": one.batch,
        "budget": one.budget,
        "fits": figures is not None,
        "floor": one.floor,
        "baseline_peak": one.plain.peak,
        "baseline_time": one.plain.time,
        "time": figures and figures.time,
        "peak": figures and figures.peak,
        "host_peak": figures and figures.host_peak,
        "pinned_peak": figures and figures.pinned_peak,
        "least_pinned": figures and figures.least_pinned,
        "disk_peak": figures and figures.disk_peak,
        "overhead": figures and Report(figures, one.plain).overhead,
        "samples_per_second": one.samples_per_second,
    }


def lines_of(found: Found, gpu: str, optimizer: str) -> Iterator[Text]:
    rows = [
        ("gpu", f"{gpu}: times estimated by the roofline"),
        ("optimizer", optimizer),
        ("budget", spelled(found.limit)),
    ]
    yield from labelled(rows)
    heads = [
        "batch",
        "floor",
        "plain peak",
        "peak",
        "host peak",
        "pinned",
        "time",
        "overhead",
        "samples/s",
        "",
    ]
    fastest = found.fastest
    ordered = sorted(found.trials, key=lambda one: one.batch)
    yield from table(heads, (_cells(one, one is fastest) for one in ordered))
    yield from labelled(_summary(found))


def _cells(one: Trial, fastest: bool) -> list[str]:
    first = [f"{one.batch:,}", format_bytes(one.floor), format_bytes(one.plain.peak)]
    if one.figures is None:
        return [*first, *"------", "no: below the floor" if one.hopeless else "no schedule found"]
    peaks = map(format_bytes, (one.figures.peak, one.figures.host_peak, one.figures.pinned_peak))
    return [*first, *peaks, *_speed(one), "fits, most samples/s" if fastest else "fits"]


def _summary(found: Found) -> Iterator[Row]:
    told = (
        ("smallest budget", found.least),
        ("largest batch", found.largest),
        ("fastest batch", found.fastest),
    )
    for label, one in told:
        if one is not None:
            time, overhead, rate = _speed(one)
            figures = f"batch {one.batch:,} within {spelled(one.budget)}"
            yield label, f"{figures}: {time}, {overhead} against plain, {rate} samples/s"
    if found.largest is not None and (line := pinning(found)):
        yield "pinned memory", line


def pinning(found: Found) -> str | None:
    """One line where pinned memory, neither the device's nor the host's, keeps a batch from fitting."""
    one = found.pinning
    if one is None or one.figures is None or found.pinned is None:
        return None
    need = f"its schedule pins {spelled(one.figures.least_pinned)}"
    return f"batch {one.batch:,} would fit but for host.pinned, {spelled(found.pinned)}: {need}"


def _speed(one: Trial) -> list[str]:
    """Time, overhead, samples per second."""
    if one.figures is None:
        return [*"---"]
    overhead = Report(one.figures, one.plain).overhead
    rate = one.samples_per_second or 0.0
    return [duration(one.figures.time), signed(overhead), f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}"]


def nothing_fits(found: Found) -> str:
    one, least = found.trials[0], found.least
    needs = f"the smallest budget found is {spelled(least.budget)}" if least else "no budget was found"
    floor = f"no schedule can pass below {spelled(one.floor)}"
    line = f"batch {one.batch:,} does not fit within {spelled(found.limit)}: {needs}; {floor}"
    return "; ".join(filter(None, (line, pinning(found))))
