"""The figures of a schedule as every command prints them, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ...graphs.units import duration, signed
from ...planner.addresses.layout import Layout
from ...planner.baseline import baseline
from ...planner.bounds import minimum_memory, minimum_memory_once, offloads
from ...planner.budget import spelled
from ...planner.report import Report
from ...planner.schedule.schedule import Schedule
from .breakdown import launches
from .output import Row


def report_document(report: Report, budget: int | None) -> dict[str, Any]:
    """Return `predicted` of plan-schedule/1 with the budget (bytes or null), the overhead and the gap.

    bound_by: the program whose word the lower bound is; empty if it is memplan's own arithmetic.
    """
    return {
        **report.predicted(),
        "budget": budget,
        "overhead": report.overhead,
        "gap": report.gap,
        "bound_by": report.bound_by,
    }


def report_rows(
    report: Report, budget: int | None, machine: Machine | None, limit: str = "the budget"
) -> Iterator[Row]:
    """Yield the rows of a schedule's figures.

    machine: its memories' names are shown. limit: what the budget in bytes is.
    """
    figures, reference = report.figures, report.baseline
    of_budget = f", {figures.peak / budget:.1%} of {limit}" if budget else ""
    yield "time", f"{duration(figures.time)}, {signed(report.overhead)} vs. baseline"
    yield "peak", f"{spelled(figures.peak)}{of_budget}"
    if figures.least_budget != figures.peak:
        yield "min. budget", spelled(figures.least_budget)
    yield "baseline", f"{duration(reference.time)}, peak {spelled(reference.peak)}"
    if figures.host_peak:
        yield "host peak", spelled(figures.host_peak)
    if figures.pinned_peak:
        yield "pinned peak", spelled(figures.pinned_peak)
    if figures.least_pinned != figures.pinned_peak:
        yield "min. pinned", spelled(figures.least_pinned)
    names = (machine or Machine()).hierarchy.names
    for name, peak in zip(names[Memory.DISK :], figures.peaks[Memory.DISK :], strict=True):
        if peak:
            yield f"{name} peak", spelled(peak)
    if report.lower_bound and report.gap is not None:  # one of 0 s proves nothing
        by = f", by {report.bound_by}, not checked" if report.bound_by else ""
        yield "lower bound", f"{duration(report.lower_bound)} (any order{by}), gap {report.gap:z.1%}"
    else:
        yield "lower bound", "none known"


def minimum_document(graph: Graph, machine: Machine | None) -> dict[str, int | None]:
    """Return the minimum memory in bytes, null if that minimum does not exist."""
    return {
        "min_memory": minimum_memory(graph, machine),
        "min_memory_once": minimum_memory_once(graph, machine),
    }


def minimum_rows(graph: Graph, machine: Machine | None) -> Iterator[Row]:
    kind = "with" if offloads(machine or graph.machine) else "without"
    yield "minimum", f"{spelled(minimum_memory(graph, machine))} ({kind} offloading, any order)"
    once = minimum_memory_once(graph, machine)
    if once is not None:
        yield "", f"{spelled(once)} (without offloading, traced order, backward once)"


def arena_document(layout: Layout | None) -> dict[str, int] | None:
    """Return the arena's bytes.

    bound: the peak of live bytes in whole blocks, below which no arena exists.
    """
    return None if layout is None else {"bytes": layout.size, "bound": layout.bound}


def arena_rows(layout: Layout | None, budget: int | None = None) -> Iterator[Row]:
    if layout is not None:
        of_budget = f", {layout.size / budget:.1%} of the budget" if budget else ""
        above = layout.size / layout.bound - 1 if layout.bound else 0.0
        least = (
            "the smallest there is" if layout.size == layout.least else f"{signed(above)} against the peak"
        )
        yield "arena", f"{spelled(layout.size)}{of_budget}, {least}"


def launch_rows(graph: Graph, schedule: Schedule) -> Iterator[Row]:
    """Yield a row if launching takes longer than computing."""
    computing, launching = launches(graph, schedule)
    if launching > computing:
        yield (
            "launches",
            f"{duration(launching)}, computations {duration(computing)}: launching is what limits",
        )


def loop_row(loop: str) -> list[Row]:
    """Return the row of a training loop's memory, of which a schedule's is a part, if it is known."""
    return [("in the loop", loop)] if loop else []


def policy_row(solver: Mapping[str, Any]) -> list[Row]:
    """Return the row of the policy that a solver has chosen, if it chooses among policies.

    solver: its record in the schedule's file.
    """
    return [("policy", str(solver["policy"]))] if "policy" in solver else []


def graph_row(graph: Graph) -> Row:
    size = f"{len(graph.operations):,} operations, {len(graph.tensors):,} tensors"
    return "graph", f"{graph.name}: {size}"


def made_document(graph: Graph) -> dict[str, Any]:
    """Return a graph that was made, for JSON, with its baseline."""
    reference = baseline(graph)
    return {
        "name": graph.name,
        "operations": len(graph.operations),
        "tensors": len(graph.tensors),
        "baseline_time": reference.time,
        "baseline_peak": reference.peak,
        "source": dict(graph.source),
    }


def made_rows(graph: Graph) -> list[Row]:
    """Return the rows of a graph that was made."""
    reference = baseline(graph)
    return [
        graph_row(graph),
        ("baseline", f"{duration(reference.time)}, peak {spelled(reference.peak)}"),
    ]
