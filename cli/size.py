"""`plan size`: what fits a GPU that need not be here: the smallest budget, the largest batch, their times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.presets import Preset, find_machine, find_preset
from ..graphs.units import format_bytes
from ..graphs.updates import When
from ..planner.budget import Budget, spelled
from ..planner.report import Report
from ..solvers import registry
from ..solvers.sizing import Trial
from .exits import Exit, NothingFitsError
from .figures import duration, signed
from .models import model_code
from .options import budget_option, machine_option, output_options, seconds_argument, settings_argument
from .output import Output, Row, labelled, table
from .size_search import Found, Model, Question, sizes_of
from .solve import DEFAULT


def batches_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int] | None:
    """Callback of --batch."""
    words = [] if text is None else text.split(",")
    batches = [int(word) for word in words if word.strip().isdecimal() and int(word)]
    if len(batches) != len(words):
        raise click.BadParameter(f"{text!r} is no list of batches, like 1,2,4", ctx, param)
    return batches or None


@click.command()
@click.argument("model", metavar="MODEL.py[:ENTRY]")
@click.option("--gpu", required=True, metavar="NAME", help="The GPU, like rtx3060: see plan machine --list.")
@machine_option
@budget_option
@click.option(
    "--batch", "batches", callback=batches_argument, metavar="1,2,4", help="Try these.  [default: search]"
)
@click.option("--optimizer", type=click.Choice(["adamw", "sgd", "none"]), default="adamw", show_default=True)
@click.option(
    "--update", type=click.Choice(["in-backward", "after"]), default="in-backward", show_default=True
)
@click.option("--solver", default=DEFAULT, show_default=True, metavar="NAME", help="See `plan solvers`.")
@click.option(
    "--time-limit",
    type=float,
    default=10.0,
    show_default=True,
    callback=seconds_argument,
    metavar="S",
    help="Seconds for each question to the solver.",
)
@click.option("--set", "settings", multiple=True, callback=settings_argument, metavar="KEY=VALUE")
@output_options
def size(
    model: str,
    gpu: str,
    machine_path: Path | None,
    budget: Budget | None,
    batches: list[int] | None,
    optimizer: str,
    update: When,
    solver: str,
    time_limit: float,
    settings: dict[str, str],
    output: Output,
) -> None:
    """Find what fits: the smallest budget, the largest batch, and the predicted time of each.

    Nothing is measured: times are estimated for --gpu, which need not be here. A `build` with a parameter
    `batch` is asked for each batch; for any other the example inputs are repeated. Exit code 3 where no
    batch fits.
    """
    preset = find_preset(gpu)
    registry.chosen_settings(solver, settings)
    from ..runtime.model_file import load_model_file
    from ..runtime.optimizers import Choice

    with model_code(model, "this machine"), output.status(f"reading {model}") as report:
        machine = find_machine(machine_path) if machine_path else preset.machine
        limit = _limit(machine, budget, output)
        choice = None if optimizer == "none" else Choice(optimizer, update)
        graphs = Model(load_model_file(model), replace(preset, machine=machine), choice, report)
        found = sizes_of(graphs, Question(solver, time_limit, settings, machine, report), limit, batches)
    _tell(found, preset, optimizer, output)


def _limit(machine: Machine, budget: Budget | None, output: Output) -> int:
    """Device bytes: the budget, or the device's capacity where that is less or no budget is given."""
    capacity = machine.device_capacity
    if budget is not None and budget.size is None:
        raise InputError(f"{budget.text!r}: a percentage is of a plain peak, which is another for each batch")
    if budget is None or budget.size is None:
        if capacity is None:
            raise InputError("the machine has no device capacity: give a --budget, like 12GB")
        return capacity
    if capacity is not None and budget.size > capacity:
        output.note(
            f"{budget.text} is above the device's capacity = {spelled(capacity)}, which holds instead"
        )
        return capacity
    return budget.size


def _tell(found: Found, preset: Preset, optimizer: str, output: Output) -> None:
    output.result(
        {
            "gpu": preset.gpu.name,
            "optimizer": optimizer,
            "budget": found.limit,
            "batches": [_document(one) for one in found.trials],
            "largest_batch": found.largest and _document(found.largest),
            "smallest_budget": found.least and _document(found.least),
            "interrupted": found.interrupted,
        },
        _lines(found, preset, optimizer),
    )
    if found.interrupted:
        output.note("interrupted: this is what was found so far")
        raise SystemExit(Exit.INTERRUPTED)
    if found.largest is None:
        raise NothingFitsError(_nothing(found))


def _document(one: Trial) -> dict[str, Any]:
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
        "disk_peak": figures and figures.disk_peak,
        "overhead": figures and Report(figures, one.plain).overhead,
        "samples_per_second": one.samples_per_second,
    }


def _lines(found: Found, preset: Preset, optimizer: str) -> Iterator[Text]:
    rows = [
        ("gpu", f"{preset.gpu.name}: times estimated by the roofline"),
        ("optimizer", optimizer),
        ("budget", spelled(found.limit)),
    ]
    yield from labelled(rows)
    heads = ["batch", "floor", "plain peak", "peak", "host peak", "time", "overhead", "samples/s", ""]
    yield from table(heads, map(_cells, sorted(found.trials, key=lambda one: one.batch)))
    yield from labelled(_summary(found))


def _cells(one: Trial) -> list[str]:
    first = [f"{one.batch:,}", format_bytes(one.floor), format_bytes(one.plain.peak)]
    if one.figures is None:
        return [*first, *"-----", "no: below the floor" if one.hopeless else "no schedule found"]
    peaks = map(format_bytes, (one.figures.peak, one.figures.host_peak))
    return [*first, *peaks, *_speed(one), "fits"]


def _summary(found: Found) -> Iterator[Row]:
    for label, one in (("smallest budget", found.least), ("largest batch", found.largest)):
        if one is not None:
            time, overhead, rate = _speed(one)
            figures = f"batch {one.batch:,} within {spelled(one.budget)}"
            yield label, f"{figures}: {time}, {overhead} against plain, {rate} samples/s"


def _speed(one: Trial) -> list[str]:
    """Time, overhead, samples per second."""
    if one.figures is None:
        return [*"---"]
    overhead = Report(one.figures, one.plain).overhead
    rate = one.samples_per_second or 0.0
    return [duration(one.figures.time), signed(overhead), f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}"]


def _nothing(found: Found) -> str:
    one, least = found.trials[0], found.least
    needs = f"the smallest budget found is {spelled(least.budget)}" if least else "no budget was found"
    floor = f"no schedule can pass below {spelled(one.floor)}"
    return f"batch {one.batch:,} does not fit within {spelled(found.limit)}: {needs}; {floor}"
