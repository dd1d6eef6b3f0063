"""Options of `plan size` that change the training loop: adapters, autocast, attention, accumulation;
sharded training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ...graphs.machine import Peers
from ...graphs.machines.networks import NETWORKS, find_network
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
    click.option(
        "--ranks",
        type=click.IntRange(2),
        metavar="N",
        help="GPUs that train together, each with its own batch: weights, gradients and optimizer states are "
        "sharded (FSDP, ZeRO-3).  [default: one GPU]",
    ),
    click.option(
        "--link",
        metavar="NAME|RATE",
        help="Network of --ranks: nvlink, pcie4, pcie5, ib400, eth100, or what a GPU receives: 45GB/s or "
        "45GB/s,30us.  [default: none]",
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
    ranks: GPUs of sharded training, None for one GPU. link: their network.
    """

    lora: str | None = None
    autocast: str | None = None
    attention: str | None = None
    accumulate: int = 1
    total: int | None = None
    ranks: int | None = None
    link: str | None = None

    @property
    def peers(self) -> Peers | None:
        """The network of sharded training. Raises UsageError or InputError, one line."""
        if self.ranks is None:
            if self.link is not None:
                raise click.UsageError("--link is the network of several GPUs: give --ranks too")
            return None
        if self.link is None:
            raise click.UsageError(
                f"--ranks {self.ranks}: give their network too: --link {'|'.join(NETWORKS)}"
            )
        if self.total is not None or self.accumulate > 1:
            other = "--global-batch" if self.total is not None else "--accumulate"
            raise click.UsageError(f"--ranks counts one micro-batch per update: omit {other}")
        return find_network(self.link, self.ranks)

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
