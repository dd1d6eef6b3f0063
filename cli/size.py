"""`plan size`: what fits a GPU that need not be here: the smallest budget, the largest batch, their times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ..graphs.errors import InputError
from ..graphs.machine import Machine
from ..graphs.machines.presets import Preset, find_machine, find_preset
from ..graphs.transformations.updates import When
from ..planner.budget import Budget, spelled
from ..planner.sizing import LARGEST
from ..solvers.registry import run as registry
from .completion import completing, machines
from .exits import Exit, NothingFitsError
from .models import model_code
from .options import (
    budget_option,
    machine_option,
    output_options,
    seconds_argument,
    settings_argument,
    solver_option,
)
from .output import Output
from .size_report import lines_of, nothing_fits, trial_document
from .size_search import Found, Model, Question, sizes_of


def batches_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int] | None:
    """Callback of --batch."""
    words = [] if text is None else text.split(",")
    batches = [int(word) for word in words if word.strip().isdecimal()]
    if len(batches) != len(words) or not all(0 < batch <= LARGEST for batch in batches):
        fault = f"{text!r} is no list of batches, like 1,2,4, from 1 to {LARGEST:,}"
        raise click.BadParameter(fault, ctx, param)
    return batches or None


@click.command()
@click.argument("model", metavar="MODEL.py[:ENTRY]")
@click.option(
    "--gpu",
    required=True,
    metavar="NAME",
    shell_complete=completing(machines),
    help="The GPU, like rtx3060: see plan machine --list.",
)
@machine_option
@budget_option
@click.option(
    "--batch", "batches", callback=batches_argument, metavar="1,2,4", help="Try these.  [default: search]"
)
@click.option("--optimizer", type=click.Choice(["adamw", "sgd", "none"]), default="adamw", show_default=True)
@click.option(
    "--update", type=click.Choice(["in-backward", "after"]), default="in-backward", show_default=True
)
@solver_option
@click.option(
    "--time-limit",
    type=float,
    default=10.0,
    show_default=True,
    callback=seconds_argument,
    metavar="S",
    help="Seconds for each question to the solver.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=settings_argument,
    metavar="KEY=VALUE",
    help="A setting of the solver; may be given several times.",
)
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
    """Find what fits: the smallest budget, the largest and the fastest batch, the predicted time of each.

    Nothing is measured: times are estimated for --gpu, which need not be here. A `build` with a parameter
    `batch` is asked for each batch; for any other the example inputs are repeated. Exit code 3 where no
    batch fits.

    \b
    plan size model.py --gpu rtx3060
    plan size model.py --gpu rtx3060 --batch 1,2,4 --optimizer sgd
    """
    preset = find_preset(gpu)
    registry.chosen_settings(solver, settings)
    from ..runtime.model.file import load_model_file
    from ..runtime.updates.optimizers import Choice

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
            "batches": [trial_document(one) for one in found.trials],
            "largest_batch": found.largest and trial_document(found.largest),
            "fastest_batch": found.fastest and trial_document(found.fastest),
            "smallest_budget": found.least and trial_document(found.least),
            "pinning": found.pinning and trial_document(found.pinning),
            "interrupted": found.interrupted,
        },
        lines_of(found, preset.gpu.name, optimizer),
    )
    if found.interrupted:
        output.note("interrupted: this is what was found so far")
        raise SystemExit(Exit.INTERRUPTED)
    if found.largest is None:
        raise NothingFitsError(nothing_fits(found))
