"""Options of `plan size` that change the training loop: adapters, autocast, attention, accumulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ...sizing.subject import AUTOCAST_DTYPES, QUANTIZED, LoopOptions
from ...sizing.trial import LARGEST
from ..network_options import precision_options
from ..optimizer_options import MASTER_WEIGHTS
from ..parameter_types import Word, dtype_word

_OPTIONS = (
    click.option(
        "--lora",
        metavar="r=16[,targets=q_proj+v_proj]",
        help="Train adapters of this rank, on all linear layers or those named; all else is frozen.  "
        "[default: all weights are trained]",
    ),
    click.option(
        "--quantize",
        type=Word(list(QUANTIZED)),
        help="Frozen linear weights in 4 bits, with --lora: scales in float32, or nested.  "
        "[default: as they are]",
    ),
    click.option(
        "--autocast",
        type=dtype_word(AUTOCAST_DTYPES),
        help="Run forward and loss in torch.autocast of this dtype.  [default: no autocast]",
    ),
    click.option(
        "--attention",
        type=Word(["eager", "sdpa"]),
        help="Implementation of attention in a model of transformers.  [default: its own]",
    ),
    click.option(
        "--accumulate",
        type=click.IntRange(1, LARGEST),
        default=1,
        show_default=True,
        metavar="K",
        help="Micro-batches per update; --batch is of one micro-batch.",
    ),
    click.option(
        "--global-batch",
        "total",
        type=click.IntRange(1, LARGEST),
        metavar="N",
        help="Samples per update: find the fastest micro-batch that divides N, with accumulation, "
        "recomputation and offloading as needed.  [default: micro-batches as --batch says]",
    ),
    click.option(
        "--split",
        is_flag=True,
        help="Also say what operations in pieces (split=True) buy: the smallest budget, the largest batch.",
    ),
    MASTER_WEIGHTS,
    click.option(
        "--expandable-segments",
        is_flag=True,
        help="High ends without a plan are those of PYTORCH_ALLOC_CONF=expandable_segments:True, by which "
        "PyTorch's allocator leaves less unused between blocks.  [default: its own segments]",
    ),
)


def loop_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which hands them to `chosen_loop`."""
    command = precision_options(command)
    # The last decorator is the first in --help.
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_loop(options: dict[str, Any]) -> LoopOptions:
    # The flag is None if it is not given, as of plan profile.
    return LoopOptions(master_weights=bool(options.pop("master_weights")), **options)
