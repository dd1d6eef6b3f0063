"""`plan check`: a schedule, replayed by the rules of plan-schedule/1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..planner.budget import Budget, spelled
from ..planner.errors import InvalidScheduleError
from ..planner.report import Report
from .exits import CheckFailedError
from .help import PlanCommand
from .options import budget_option, chosen_machine, graph_option, machine_option, output_options
from .parameter_types import DOCUMENT
from .printing.figures import (
    arena_document,
    arena_rows,
    graph_row,
    launch_rows,
    loop_row,
    report_document,
    report_rows,
)
from .printing.output import Output, labelled
from .replay import TOLERANCE, arena_of, is_number, open_schedule, validate_schedule


@click.command(cls=PlanCommand)
@click.argument("schedule", type=DOCUMENT)
@graph_option
@budget_option("that of the schedule")
@machine_option("that of the schedule")
@output_options
def check(
    schedule: Path, graph_path: Path | None, budget: Budget | None, machine_path: Path | None, output: Output
) -> None:
    """Replay SCHEDULE by the rules, and report its figures.

    The budget and the machine are those recorded in the schedule, unless given. Exit code 5 where the
    schedule breaks a rule or its recorded figures are not the replayed ones, 6 where it was made for
    another graph.

    \b
    plan check schedule.json
    """
    held = open_schedule(schedule, graph_path, output, budget, chosen_machine(machine_path, output))
    try:
        report = held.report(validate_schedule(held, schedule))
        layout = arena_of(held, schedule)
        if held.own:
            _compare(schedule, report, held.file.predicted)
    except CheckFailedError as error:
        output.refusal(_refused(error))
        raise
    output.result(
        {"valid": True, **report_document(report, held.budget), "arena": arena_document(layout)},
        labelled(
            [
                graph_row(held.graph),
                ("schedule", f"valid: {len(held.file.schedule):,} steps keep every rule"),
                ("budget", "none" if held.budget is None else spelled(held.budget)),
                *report_rows(report, held.budget, held.machine or held.graph.machine),
                *loop_row(held.loop),
                *arena_rows(layout),
                *launch_rows(held.graph, held.file.schedule),
            ]
        ),
    )


def _refused(error: CheckFailedError) -> dict[str, Any]:
    """Return a refusal for JSON.

    rule, step and tensor are null if the schedule is valid and its recorded figures are wrong.
    """
    # The rule that was broken, if it is that; a wrong figure has no cause.
    cause = error.__cause__
    broken = cause if isinstance(cause, InvalidScheduleError) else None
    places = {place: getattr(broken, place, None) for place in ("rule", "step", "tensor")}
    return {"valid": False, **places}


def _compare(path: Path, report: Report, predicted: Mapping[str, Any]) -> None:
    """Raise CheckFailedError if a recorded figure is not the replayed one."""
    bound, own = predicted.get("lower_bound"), report.figures.time
    # Provably false without solving: no bound is above the time of a valid schedule.
    if is_number(bound) and bound > own * (1 + TOLERANCE):
        raise CheckFailedError(
            f"{path}: its recorded lower_bound, {bound!r} s, is above its own time, {own!r} s"
        )
    for name, replayed in report.predicted().items():
        # Files of earlier versions lack figures that are newer.
        if name not in predicted or replayed is None or predicted[name] is None:
            continue
        recorded = predicted[name]
        if not is_number(recorded):
            raise CheckFailedError(f"{path}: its recorded {name} is {recorded!r}, not a number")
        if abs(recorded - replayed) > TOLERANCE * abs(replayed):
            raise CheckFailedError(f"{path}: its recorded {name} is {recorded!r}, the replay's {replayed!r}")
