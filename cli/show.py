"""`plan show`: a schedule's figures, what it recomputes, where its peak is, its memory over time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.text import Text

from ..graphs.graph import Graph, Phase
from ..planner.budget import spelled
from ..planner.report import Report
from ..planner.schedule import Schedule, Verb
from ..planner.simulate import Replay
from .curve import draw
from .figures import duration, graph_row, report_document, report_rows
from .options import FILE, graph_option, output_options
from .output import Output, labelled, table
from .replay import judged, open_schedule

_LISTED = 5


@click.command()
@click.argument("schedule", type=FILE)
@graph_option
@output_options
def show(schedule: Path, graph_path: Path, output: Output) -> None:
    """Show SCHEDULE: its figures, what it recomputes, the peak, and its memory curve."""
    held = open_schedule(schedule, graph_path)
    replay = judged(held, schedule)
    report = held.report(replay)
    graph, steps = held.graph, held.file.schedule
    phases, again = phase_rows(graph, steps), recomputed(graph, steps)
    peak = peak_of(graph, steps, replay)
    output.result(
        {
            **report_document(report, held.budget),
            "steps": len(steps),
            "phases": phases,
            "recomputed": again,
            "peak_at": peak,
            "device_curve": replay.device_curve.tolist() if output.as_json else [],
        },
        _lines(graph, report, held.budget, phases, again, peak, replay, output),
    )


def phase_rows(graph: Graph, schedule: Schedule) -> list[dict[str, Any]]:
    """Per phase: operations, runs and their seconds, and how much of that is run again."""
    runs = schedule.targets[schedule.verbs == Verb.COMPUTE]
    counts = np.bincount(runs, minlength=len(graph.operations))
    time, phase = graph.operations.time, graph.operations.phase
    return [
        {
            "phase": kind.word,
            "operations": int((phase == kind).sum()),
            "runs": int(counts[phase == kind].sum()),
            "time": float((counts * time)[phase == kind].sum()),
            "again": float(((counts - 1) * time)[phase == kind].sum()),
        }
        for kind in Phase
        if (phase == kind).any()
    ]


def recomputed(graph: Graph, schedule: Schedule) -> list[dict[str, Any]]:
    """The operations that run more than once, the costliest repeats first."""
    runs: Counter[int] = Counter(schedule.targets[schedule.verbs == Verb.COMPUTE].tolist())
    rows = [
        {
            "operation": graph.operations.name[operation],
            "runs": count,
            "again": (count - 1) * float(graph.operations.time[operation]),
        }
        for operation, count in runs.items()
        if count > 1
    ]
    return sorted(rows, key=lambda row: (-float(row["again"]), str(row["operation"])))


def peak_of(graph: Graph, schedule: Schedule, replay: Replay) -> dict[str, Any]:
    """The first step at which the device holds most, and the largest tensors on it then."""
    if not len(schedule):
        return {"step": None, "what": "nothing runs", "tensors": []}
    at = int(replay.device_curve.argmax())
    steps = list(schedule)
    alive = {x for x in range(len(graph.tensors)) if graph.resident[x]}
    for verb, target, where in steps[: at + 1]:
        if verb == Verb.COMPUTE:
            alive.update(x for x, _bit in graph.contributions(target, where))
        elif verb == Verb.DELETE and where == 0:
            alive.discard(target)
        elif verb == Verb.PREFETCH and where == 0:
            alive.add(target)
    verb, target, _where = steps[at]
    of = graph.operations.name if verb == Verb.COMPUTE else graph.tensors.name
    largest = sorted(alive, key=lambda x: (-int(graph.tensors.bytes[x]), x))[:_LISTED]
    return {
        "step": at,
        "what": f"{verb.word} {of[target]}",
        "tensors": [
            {"tensor": t.name, "kind": t.kind.word, "bytes": t.bytes} for t in map(graph.tensor, largest)
        ],
    }


def _lines(
    graph: Graph,
    report: Report,
    budget: int | None,
    phases: list[dict[str, Any]],
    again: list[dict[str, Any]],
    peak: dict[str, Any],
    replay: Replay,
    output: Output,
) -> list[Text]:
    seconds = sum(float(row["again"]) for row in again)
    lines = list(labelled([graph_row(graph), *report_rows(report, budget)]))
    lines.append(Text(""))
    columns = ["operations", "runs", "time", "run again", "phase"]
    rows = [
        [
            f"{row['operations']:,}",
            f"{row['runs']:,}",
            duration(row["time"]),
            duration(row["again"]),
            row["phase"],
        ]
        for row in phases
    ]
    lines += table(columns, rows)
    lines += [
        Text(""),
        Text(f"{len(again):,} operations run again, {duration(seconds)} in all", style="bold"),
    ]
    lines += [
        Text(f"  {row['operation']}  ×{row['runs']}  {duration(row['again'])}") for row in again[:_LISTED]
    ]
    if len(again) > _LISTED:
        lines.append(Text(f"  … and {len(again) - _LISTED:,} more"))
    lines += [Text(""), Text(f"peak at step {peak['step']}: {peak['what']}", style="bold")]
    lines += [Text(f"  {t['tensor']}  {t['kind']}  {spelled(t['bytes'])}") for t in peak["tensors"]]
    if len(replay.device_curve):
        lines.append(Text(""))
        lines += draw(replay.device_curve, budget, width=output.width, blocks=output.blocks)
    return lines
