"""`plan size`: what fits a GPU: the batch to train with, the largest, and what takes the memory.

The GPU need not be present.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ...graphs.errors import InputError
from ...graphs.transformations.updates import When
from ...planner.budget import Budget
from ...report.origin import made
from ...report.size import page
from ...sizing.answer import answer_of, nothing_fits
from ...sizing.documents import document_of
from ...sizing.lengths import Lengths, parse_lengths
from ...sizing.request import SizeRequest, parse_batches
from ...sizing.result import SizeResult
from ...sizing.rooms import ALL
from ...sizing.settings.apply import OPTIONS, with_settings
from ..exits import Exit, NothingFitsError
from ..export_views import write_view
from ..gpu_options import host_options
from ..help import PlanCommand
from ..known_names import completing, every_machine
from ..models import model_code
from ..network_options import chosen_network, network_options
from ..next_command import command_with
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
from .loop_options import chosen_loop, loop_options
from .screen import Screen

_ROOM = 1.02
"""Factor of the smallest budget found: another search ends by the clock, and may find a little more."""
_BY_USER = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


def batches_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> list[int] | None:
    """Parse --batch; a callback for click."""
    try:
        return None if text is None else parse_batches(text)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def lengths_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> Lengths | None:
    """Parse --lengths; a callback for click."""
    try:
        return None if text is None else parse_lengths(text)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command(cls=PlanCommand)
@click.argument("model", metavar="MODEL.py[:ENTRY]|train.py|CONFIG|ID")
@click.option(
    "--gpu",
    required=True,
    metavar="NAME|NAME,NAME|all",
    shell_complete=completing(every_machine),
    help="GPU to estimate for, like rtx3060, or a machine file that describes it; several, or all that "
    "plan machine "
    "--list knows.",
)
@host_options("64GB")
@machine_option("that of --gpu")
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
    "--lengths",
    callback=lengths_argument,
    metavar="64-2048|FILE",
    help="Tokens of the samples, for a CONFIG, each batch padded to its longest: a range, a list like "
    "64,512,2048, or a file with a number on each line. Also say what PyTorch's allocator reserves for them "
    "without a plan, and the mean time. With --seq-len samples are cut to that.  [default: all have one "
    "length]",
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
@click.option(
    "--train-config",
    "train_configs",
    type=FILE,
    multiple=True,
    help="Training settings in a file of another tool: DeepSpeed's ds_config.json, accelerate's YAML, "
    "axolotl's, TRL's or LLaMA-Factory's. May be given several times; options hold against it.",
)
@click.option(
    "--script-args",
    metavar='"--epochs 3"',
    help="Command line of a Trainer's script, in quotes.  [default: none]",
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
    lengths: Lengths | None,
    dtype: str | None,
    price: str | None,
    optimizer: str,
    update: When,
    solver: str,
    time_limit: float | None,
    settings: dict[str, str],
    train_configs: tuple[Path, ...],
    script_args: str | None,
    cached: bool,
    destination: Path | None,
    output: Output,
    **options: Any,
) -> None:
    """Will it fit? Which batch to train with, the largest, and what takes the memory.

    MODEL.py has a function that builds the model; CONFIG is a config.json of Hugging Face or its folder, ID
    a model of the hub that is in the local cache; a file of axolotl or TRL that names the model works too.
    train.py trains by transformers' Trainer, or TRL's: it runs up to `train()`, without weights, and its
    model, batch and TrainingArguments count.
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
    plan size axolotl.yaml --gpu rtx4090
    plan size train.py --gpu rtx4090 --script-args "--max_length 2048"
    plan size config.json --gpu a100 --train-config ds_config.json
    plan size config.json --gpu rtx4090 --batch 4 --lengths tokens.txt
    """
    from ...graphs.collector import collector_seldom

    network, loop = chosen_network(options), chosen_loop(options)
    request = SizeRequest(
        model,
        gpu,
        host,
        lanes,
        budget=budget,
        reserve=reserve,
        batches=batches,
        length=length,
        lengths=lengths,
        dtype=dtype,
        price=price,
        optimizer=optimizer,
        update=update,
        loop=loop,
        network=network,
        solver=solver,
        settings=settings,
        time_limit=time_limit,
        cached=cached,
    )

    @contextmanager
    def working(line: str) -> Generator[Callable[[str], None]]:
        # What the model prints goes to standard error, so no result is printed in the block.
        with model_code(model, "this machine"), output.status(line) as report:
            yield report

    with collector_seldom() as leave_out_all:
        request = replace(request, machine=chosen_machine(machine_path, output))
        with working(f"reading {model}"):
            request = with_settings(request, train_configs, _given(), output.note, script_args or "")
        chosen = request.presets(output.note)
        with working(f"reading {model}") as report:
            sizing = request.sizing(chosen, report, output.note)
            leave_out_all()  # PyTorch's objects, through which each collection would look
        screen = Screen(sizing, output, working)
        at_once = screen.at_once()
        results = [*screen.each(at_once)]
        sizes = sizing.together(results, at_once)
        with working("estimating"):
            answer = answer_of(sizes, page=destination is not None)
            document = document_of(sizes) if output.as_json else {}
    if destination is not None:
        title = f"{sizing.subject.name}: will it fit?"
        write_view(page(title, answer.sections, made(sys.argv[1:])).encode(), destination)
    for line in sizing.notes():
        output.note(f"warning: {line}")
    written = destination and str(destination)
    output.result({**document, "page": written}, screen.end(answer))
    if written:
        output.note(f"written: {written}")
    _end(results, request, output)


def _given() -> set[str]:
    """Return the options that the user gave, by the names that settings of files have."""
    ctx = click.get_current_context()
    names = {option: option for option in OPTIONS} | {"batch": "batches"}
    return {name for name, option in names.items() if ctx.get_parameter_source(option) in _BY_USER}


def _end(results: list[SizeResult], request: SizeRequest, output: Output) -> None:
    """End with another exit code if the search was interrupted, a solver failed, or no batch fits."""
    if results[-1].interrupted:
        output.note("interrupted: this is what was found so far")
        raise SystemExit(Exit.INTERRUPTED)
    faults = [one.reason for found in results for one in found.unanswered if one.fault]
    if faults:
        output.note("\n".join(dict.fromkeys(f"an internal error: {reason}" for reason in faults)))
        raise SystemExit(Exit.FAULT)
    if not any(found.fitting for found in results):
        parts = nothing_fits(results[-1]), command_to_try(results, request)
        raise NothingFitsError("; try: ".join(filter(None, parts)))


def command_to_try(results: list[SizeResult], request: SizeRequest) -> str | None:
    """Return a command that finds a batch that fits: with the smallest budget found, or on all GPUs."""
    found, least = results[-1], results[-1].least
    if found.peers is not None or len(results) > 1:
        return None
    if request.budget is not None and least is not None:
        needed = ceil(_ROOM * (least.budget + found.room.constant) / 10**6)
        if request.reserve is None and needed * 10**6 <= found.preset.gpu.usable:
            return command_with("--budget", f"{needed}MB")
    return None if request.machine is not None else command_with("--gpu", ALL)
