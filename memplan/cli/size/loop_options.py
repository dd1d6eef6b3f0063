"""Options of `plan size` that change the training loop: adapters, autocast, attention, accumulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ...planner.sizing.sizing import LARGEST
from ..parameter_types import Word, dtype_word

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


_OPTIONS = (
    click.option(
        "--lora",
        metavar="r=16[,targets=q_proj+v_proj]",
        help="Train adapters of this rank, on all linear layers or those named; all else is frozen.  "
        "[default: all weights are trained]",
    ),
    click.option(
        "--autocast",
        type=dtype_word(_DTYPES),
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
)


def loop_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which hands them to `chosen_loop`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class LoopOptions:
    """The options of the loop.

    total: samples per update, None if micro-batches are given.
    """

    lora: str | None = None
    autocast: str | None = None
    attention: str | None = None
    accumulate: int = 1
    total: int | None = None

    def refuse_accumulation(self) -> None:
        """Raise UsageError if an update has several micro-batches, which ranks do not have."""
        if self.total is not None or self.accumulate > 1:
            other = "--global-batch" if self.total is not None else "--accumulate"
            raise click.UsageError(f"--ranks counts one micro-batch per update: omit {other}")

    @property
    def changes_model(self) -> bool:
        return bool(self.lora or self.autocast or self.attention)

    @property
    def dtype(self) -> str | None:
        """The dtype that autocast computes in."""
        return None if self.autocast is None else _DTYPES[self.autocast]

    def steps(self, batch: int) -> int:
        """Return the micro-batches per update. batch: samples of one."""
        return self.accumulate if self.total is None else self.total // batch

    def batches(self, wanted: list[int] | None) -> list[int] | None:
        """Return the batches to try. Raises UsageError if options contradict."""
        if self.total is None:
            return wanted
        if wanted is not None or self.accumulate > 1:
            other = "--batch" if wanted is not None else "--accumulate"
            raise click.UsageError(f"--global-batch finds the micro-batch and its number: omit {other}")
        return [size for size in range(1, self.total + 1) if self.total % size == 0]


def chosen_loop(options: dict[str, Any]) -> LoopOptions:
    return LoopOptions(**options)
