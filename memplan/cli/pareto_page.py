"""The page of `plan pareto --report`: a slider over the budgets that were solved."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..comparison.pareto import Point
from ..comparison.trials import Contender
from ..report.budgets import Stop, budgets_page
from .export_views import subject_of, write_view
from .printing.output import Output
from .replay import open_schedule, validate_schedule
from .splits import has_splits


def write_budgets(
    page: Path, graph: Path, kept: Path, output: Output, *, found: Sequence[Point], who: Contender
) -> None:
    """Write the page of the schedules in the folder `kept`, BYTES.json each. found: the curve.

    A budget that an earlier table has answered, or that has no schedule, has no place on the slider.
    """
    bounds = {point.budget: point.bound for point in found}
    splits = has_splits(graph)
    stops = list[Stop]()
    name = graph.name
    for file in sorted(kept.glob("*.json"), key=lambda file: int(file.stem)):
        held = open_schedule(file, graph, output)
        name, budget = held.graph.name, int(file.stem)
        subject = subject_of(held, validate_schedule(held, file))
        if bound := bounds.get(budget, 0.0):  # of all budgets' rows; the schedule's file has none
            subject = replace(subject, report=replace(subject.report, lower_bound=bound))
        stops.append(Stop(budget, subject, bound, _commands(graph, budget, who, splits=splits)))
    if not stops:
        output.note(f"{page.name} is not written: this call has found no schedule")
        return
    write_view(budgets_page(name, stops).encode(), page)
    output.note(f"{page.name}: {len(stops)} budgets")


def _commands(graph: Path, budget: int, who: Contender, *, splits: bool) -> list[tuple[str, str]]:
    """Return the commands that solve this budget into a file, and that show it.

    splits: the file has graphs in pieces, which the curve leaves out and `plan solve` would try.
    """
    to = f"{graph.name.partition('.')[0]}-{budget}.schedule.json"
    words = ["plan", "solve", str(graph), "--budget", str(budget), "--solver", who.solver]
    for key, value in who.given.items():
        words += ["--set", f"{key}={value}"]
    if splits:
        words += ["--split-fixed", "0"]
    report = shlex.join(["plan", "report", to, "--graph", str(graph)])
    return [("solve", shlex.join([*words, "-o", to])), ("look at it", report)]
