"""`plan size`: what fits a GPU: the batch to train with, the largest, and what takes the memory.

The GPU need not be present.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...graphs.errors import InputError
from ...graphs.machine import Links, Machine
from ...graphs.machines.gpus import lacks
from ...graphs.machines.presets import Preset, presets
from ...graphs.transformations.updates import When
from ...graphs.units import FEW_BYTES
from ...planner.budget import Budget, spelled
from ...report.origin import made
from ...report.size import page
from ...sizing.answer import answer_of, nothing_fits
from ...sizing.documents import document_of
from ...sizing.estimate_range import usable
from ...sizing.question import Room
from ...sizing.result import SizeResult
from ...sizing.sizing import Sizing
from ...sizing.subject import open_subject
from ...sizing.trial import LARGEST
from ...sizing.words import with_article
from ...solvers.registry import run as registry
from ..exits import Exit, NothingFitsError
from ..export_views import write_view
from ..gpu_options import chosen_preset, host_options
from ..known_names import completing, every_machine
from ..models import model_code
from ..network_options import Network, network_options
from ..optimizer_options import NAMED, OPTIMIZER_NAMES
from ..options import (
    FILE,
    budget_argument,
    chosen_machine,
    machine_option,
    output_options,
    reserve_argument,
    settings_option,
    solver_option,
    time_limit_option,
    writable_as,
)
from ..parameter_types import Word, dtype_word
from ..printing.output import Output
from .loop_options import check_batches, chosen_loop, loop_options, refuse_accumulation
from .price import parse_prices
from .screen import Screen

ALL = "all"
HOST = "64GB"
"""Memory of the host where the user says nothing: without a limit an answer would hide its condition."""


def batches_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int] | None:
    """Parse --batch; a callback for click."""
    words = [] if text is None else text.split(",")
    batches = [int(word) for word in words if word.strip().isdecimal()]
    if len(batches) != len(words) or not all(0 < batch <= LARGEST for batch in batches):
        fault = f"{text!r} is not a list of batches: give integers like 1,2,4, from 1 to {LARGEST:,}"
        raise click.BadParameter(fault, ctx, param)
    return batches or None


@click.command()
@click.argument("model", metavar="MODEL.py[:ENTRY]|CONFIG")
@click.option(
    "--gpu",
    required=True,
    metavar="NAME|NAME,NAME|all",
    shell_complete=completing(every_machine),
    help="GPU to estimate for, like rtx3060, or a machine file that describes it; several, or all that "
    "plan machine "
    "--list knows.",
)
@host_options
@machine_option
@click.option(
    "--budget",
    callback=budget_argument,
    metavar="12GB|11.5GiB",
    help="Device memory to use, in bytes.  [default: all that the GPU has, without --reserve]",
)
@click.option(
    "--reserve",
    callback=reserve_argument,
    metavar="SIZE",
    help="Bytes of the GPU to leave free.  [default: 1% for a screen and the like; none with --budget]",
)
@click.option(
    "--batch",
    "batches",
    callback=batches_argument,
    metavar="1,2,4",
    help="Batches to try, in samples.  [default: search]",
)
@click.option(
    "--seq-len",
    "length",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Length of a sample, for a CONFIG.  [default: as many as the model has positions for, up to 1,024]",
)
@click.option(
    "--dtype",
    type=dtype_word(["float32", "bfloat16", "float16"]),
    help="Dtype of the weights, for a CONFIG.  [default: what it says, or float32]",
)
@click.option(
    "--price",
    metavar="1.20/h|a100=1.80/h,t4=0.35/h",
    help="Price of the GPU per hour, in any currency: the output then has samples per unit of it.  "
    "[default: no price]",
)
@click.option(
    "--optimizer",
    type=Word([*OPTIMIZER_NAMES, "none"]),
    metavar="NAME",
    default="adamw",
    show_default=True,
    help=f"Optimizer whose states and updates count. {NAMED}; none: forward and backward alone.",
)
@click.option(
    "--update",
    type=Word(["in-backward", "after"]),
    default="in-backward",
    show_default=True,
    help="Update each weight right after its gradient, or all after backward.",
)
@loop_options
@network_options(2, "one GPU", "none")
@solver_option
@time_limit_option("Time for each question to the solver.  [default: 6 s, more for large models]")
@settings_option()
@click.option(
    "--cache/--no-cache",
    "cached",
    default=True,
    help="Use traces that an earlier command kept, and keep those of this one.  [default: --cache]",
)
@click.option(
    "-o",
    "--output",
    "destination",
    type=FILE,
    callback=writable_as(".html"),
    help="File to write all of it to as a page for a browser: .html.  [default: none]",
)
@output_options
def size(
    model: str,
    gpu: str,
    host: str | None,
    lanes: str | None,
    machine_path: Path | None,
    budget: Budget | None,
    reserve: Budget | None,
    batches: list[int] | None,
    length: int | None,
    dtype: str | None,
    price: str | None,
    optimizer: str,
    update: When,
    solver: str,
    time_limit: float | None,
    settings: dict[str, str],
    cached: bool,
    destination: Path | None,
    output: Output,
    **options: Any,
) -> None:
    """Will it fit? Which batch to train with, the largest, and what takes the memory.

    MODEL.py has a function that builds the model; CONFIG is a config.json of Hugging Face, or its folder.
    Nothing is measured or downloaded: figures are estimates for --gpu, which need not be here, with a low and
    a high end. A `build` with a parameter `batch` is called once per batch; for any other the example inputs
    are repeated. With --ranks each batch is of one GPU, and FSDP2's policies are compared with a plan; with
    --host, --lanes or --machine the plan can use the host of a node, which its ranks divide. A batch for
    which the solver has no answer in its time is a row that says so. Exit code 3 where no batch fits.

    \b
    plan size model.py --gpu rtx3060
    plan size config.json --gpu all --seq-len 512 -o size.html
    plan size model.py --gpu rtx3060,a100 --batch 1,2,4 --optimizer sgd
    plan size config.json --gpu h100 --ranks 8 --link nvlink
    """
    from ...torch_support.collector import collector_seldom

    chosen, network = _presets(gpu, host, lanes), Network.of(options)
    registry.chosen_settings(solver, settings)
    if machine_path and len(chosen) > 1:
        raise click.UsageError("--machine describes one machine: it goes with one --gpu")
    if machine_path and (host or lanes):
        raise click.UsageError("--machine says what --host and --lanes say: give one")
    loop = chosen_loop(options)
    has_host = bool(host or lanes or machine_path)
    if network.ranks is None and network.named:
        raise click.UsageError(f"{network.named} is of several GPUs: give --ranks too")
    if network.node_ranks is not None and not has_host:
        raise click.UsageError("--node-ranks divides a host: give --host, --lanes or --machine too")
    if network.ranks is not None:
        refuse_accumulation(loop)
        if len(chosen) > 1:
            raise click.UsageError("--ranks are of equal GPUs: it goes with one --gpu")
    check_batches(loop, batches)
    prices = parse_prices(price, chosen)
    chosen = _with_dtype(chosen, {dtype, loop.dtype}, output, every=gpu.strip().lower() == ALL)

    @contextmanager
    def working(line: str) -> Generator[Callable[[str], None]]:
        # What the model prints goes to standard error, so no result is printed in the block.
        with model_code(model, "this machine"), output.status(line) as report:
            yield report

    with collector_seldom() as leave_out_all:
        with working(f"reading {model}") as report:
            rooms = [_room(preset, machine_path, budget, reserve, output) for preset in chosen]
            rank = _of_rank(rooms[0][0].machine, network, has_host=has_host)
            subject = open_subject(
                model,
                length,
                dtype=dtype,
                optimizer=optimizer,
                update=update,
                loop=loop,
                report=report,
                cached=cached,
            )
            leave_out_all()  # PyTorch's objects, through which each collection would look
            sizing = Sizing(
                subject,
                rooms,
                rank=rank,
                batches=batches,
                solver=solver,
                settings=settings,
                time_limit=time_limit,
                prices=prices,
                report=report,
            )
            at_once = sizing.at_once() if sizing.several else []
        screen = Screen(sizing, output, working)
        screen.begin(at_once)
        results = [*screen.each(at_once)]
        sizes = sizing.together(results, at_once)
        with working("estimating"):
            answer = answer_of(sizes, page=destination is not None)
            document = document_of(sizes) if output.as_json else {}
    if destination is not None:
        title = f"{subject.name}: will it fit?"
        write_view(page(title, answer.sections, made(sys.argv[1:])).encode(), destination)
    for line in dict.fromkeys(line for preset, _room in rooms for line in subject.estimates.notes(preset)):
        output.note(f"warning: {line}")
    written = destination and str(destination)
    output.result({**document, "page": written}, screen.end(answer))
    if written:
        output.note(f"written: {written}")
    _end(results, output)


def _of_rank(machine: Machine, network: Network, *, has_host: bool) -> Machine | None:
    """Return the machine of a rank of sharded training, None without --ranks. Raises UsageError, InputError.

    has_host: its tensors can go to the host of the node.
    """
    if network.ranks is None:
        return None
    peers = network.peers(machine.links.peers, None)
    if has_host:
        return network.machine_of_rank(machine, peers)
    return replace(machine, links=Links(peers=peers))


def _presets(text: str, host: str | None, lanes: str | None) -> list[Preset]:
    """Return the machines of --gpu, as --host and --lanes say. Raises InputError, one line."""
    if text.strip().lower() == ALL:
        on_pcie = (name for name, one in presets().items() if one.gpu.lanes or lanes is None)
        return [chosen_preset(name, host, lanes, HOST) for name in on_pcie]
    found = (chosen_preset(name, host, lanes, HOST) for name in text.split(","))
    return list({one.name: one for one in found}.values())


def _with_dtype(
    chosen: list[Preset], dtypes: set[str | None], output: Output, *, every: bool
) -> list[Preset]:
    """Return the GPUs that have these dtypes. Raises InputError if one that was named has not.

    dtypes: of --dtype and --autocast.
    every: all GPUs were requested: those without it are left out, with a note.
    """
    for dtype in sorted(filter(None, dtypes)):
        lines = {one.name: lacks(one.gpu, dtype) for one in chosen}
        missing = [one.gpu.name for one in chosen if lines[one.name] is not None]
        if missing and not every:
            raise InputError("; ".join(filter(None, lines.values())))
        if missing:
            output.note(f"left out, since they have no {dtype}: {', '.join(dict.fromkeys(missing))}")
        chosen = [one for one in chosen if lines[one.name] is None]
    return chosen


def _room(
    preset: Preset, machine_path: Path | None, budget: Budget | None, reserve: Budget | None, output: Output
) -> tuple[Preset, Room]:
    """Return the preset with the requested machine, and the bytes to use there."""
    from ...profiling.profile.workspace import constant_bytes

    machine = chosen_machine(machine_path, output) or _allocatable(preset)
    if machine.device_capacity is not None and machine.device_capacity > preset.gpu.total:
        most = f"the most that {with_article(preset.gpu.name)} can allocate holds instead"
        output.note(f"{machine_path} has {spelled(machine.device_capacity)} of device memory: {most}")
        machine = replace(machine, device_capacity=preset.gpu.usable)
    limit = _limit(machine, budget, output)
    if reserve is not None:
        reserve.check_reserve_meant(FEW_BYTES)
    free = reserve.size if reserve is not None else None if budget is None else 0
    left = usable(limit, free)
    if not left:
        raise InputError(f"--reserve {free or 0:,} B leaves nothing of {spelled(limit)}")
    return replace(preset, machine=machine), Room(left, constant_bytes(preset.gpu), limit - left)


def _allocatable(preset: Preset) -> Machine:
    """Return the preset's machine with no more device memory than a process can allocate there."""
    most = preset.gpu.usable
    return replace(preset.machine, device_capacity=min(preset.machine.device_capacity or most, most))


def _limit(machine: Machine, budget: Budget | None, output: Output) -> int:
    """Return the device bytes: the budget, or the device's capacity if that is less or no budget is given."""
    capacity = machine.device_capacity
    if budget is None:
        if capacity is None:
            raise InputError("the machine has no device capacity: give a --budget, like 12GB")
        return capacity
    budget.check_meant(FEW_BYTES, shares=False)
    if budget.size is None:
        raise InputError(
            f"{budget.text!r}: a percentage is of the baseline's peak, which each batch has another of"
        )
    if capacity is not None and budget.size > capacity:
        output.note(
            f"{budget.text} is above the device's capacity = {spelled(capacity)}, which holds instead"
        )
        return capacity
    return budget.size


def _end(results: list[SizeResult], output: Output) -> None:
    """End with another exit code if the search was interrupted, a solver failed, or no batch fits."""
    if results[-1].interrupted:
        output.note("interrupted: this is what was found so far")
        raise SystemExit(Exit.INTERRUPTED)
    faults = [one.reason for found in results for one in found.unanswered if one.fault]
    if faults:
        output.note("\n".join(dict.fromkeys(f"an internal error: {reason}" for reason in faults)))
        raise SystemExit(Exit.FAULT)
    if not any(found.fitting for found in results):
        raise NothingFitsError(nothing_fits(results[-1]))
