"""The options that say how a model's weights are updated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..graphs.errors import InputError
from ..graphs.units import parse_size
from .parameter_types import Word

if TYPE_CHECKING:
    from ..updates.choice import OptimizerChoice

_FOLDER = Path(__file__).parents[1] / "updates" / "optimizers"

OPTIMIZER_NAMES = sorted(path.stem for path in _FOLDER.glob("[!_]*.py"))
"""Names of the planned optimizers, taken from their files.

None is imported: they need torch, which takes seconds to load, too long for `--help` and completion.
"""

NAMED = f"NAME is {', '.join(OPTIMIZER_NAMES[:-1])} or {OPTIMIZER_NAMES[-1]}"

_THEIRS = "  [default: the optimizer's]"


def _size(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Parse a size; a callback for click."""
    try:
        return None if text is None else parse_size(text)
    except InputError as error:
        raise click.BadParameter(str(error), ctx, param) from None


MASTER_WEIGHTS = click.option(
    "--master-weights",
    is_flag=True,
    default=None,
    help="Keep a float32 master, and float32 states, of each weight in bfloat16 or float16: the update "
    "changes the master, of which the weight is the rounded copy.",
)
"""Option of all commands that make a graph with updates."""

_OPTIONS = (
    click.option(
        "--optimizer",
        type=Word(OPTIMIZER_NAMES),
        metavar="NAME",
        help="Update the weights, as the optimizer's step does: the graph has states and updates. "
        f"{NAMED}.  "
        "[default: none, the graph has forward and backward alone]",
    ),
    click.option(
        "--update",
        type=Word(["in-backward", "after"]),
        help="Update each weight right after its gradient, or all after backward.  [default: in-backward]",
    ),
    click.option(
        "--fused/--no-fused",
        default=None,
        help="Update by PyTorch's fused kernels, if there are some: several times as fast, with other bits.  "
        "[default: --fused]",
    ),
    click.option("--lr", type=float, metavar="RATE", help=f"Learning rate.{_THEIRS}"),
    click.option("--weight-decay", type=float, metavar="FACTOR", help=f"Weight decay.{_THEIRS}"),
    click.option(
        "--betas", type=(float, float), metavar="B1 B2", help=f"Decay rates of the moving averages.{_THEIRS}"
    ),
    click.option("--eps", type=float, metavar="NUMBER", help=f"Number added to divisors.{_THEIRS}"),
    click.option("--amsgrad", is_flag=True, default=None, help="Divide by the largest average so far."),
    click.option(
        "--clip-norm",
        type=float,
        metavar="NORM",
        help="Largest norm of all gradients together: larger ones are scaled down.  [default: no limit]",
    ),
    click.option(
        "--early-updates",
        is_flag=True,
        default=None,
        help="Update each weight right after its gradient, before the norm of --clip-norm is known. An "
        "iteration whose norm exceeds it is rolled back and runs a second time: the bits are those without "
        "it.",
    ),
    click.option(
        "--bucket-size",
        metavar="SIZE",
        callback=_size,
        help="Update small weights of one layer together, up to SIZE of weights, like 4MB: each bucket's "
        "weights, gradients and states take one copy to or from the host.  [default: each weight alone]",
    ),
    click.option(
        "--block-size",
        metavar="SIZE",
        callback=_size,
        help="Update large weights by blocks of rows, of at most SIZE of the weight, like 64MB: each block's "
        "states are copied to and from the host by themselves.  [default: each weight at once]",
    ),
    click.option(
        "--momentum", type=float, metavar="FACTOR", help=f"Share of the last direction that is kept.{_THEIRS}"
    ),
    click.option("--nesterov", is_flag=True, default=None, help="Use Nesterov's momentum."),
    MASTER_WEIGHTS,
)


OPTIMIZER_KEYS = (
    *("optimizer", "update", "fused", "lr", "weight_decay", "betas", "eps", "amsgrad"),
    *("clip_norm", "early_updates", "bucket_size", "block_size", "momentum", "nesterov"),
    "master_weights",
)
"""Parameters of the options."""


def optimizer_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which hands them to `chosen`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def chosen(options: dict[str, Any]) -> OptimizerChoice | None:
    """Return the chosen optimizer, None without --optimizer. Other options without it are bad usage."""
    from ..updates.choice import OptimizerChoice

    # Flags are None if absent: False would count as given.
    given = {name: value for name, value in options.items() if value is not None}
    if "optimizer" in given:
        return OptimizerChoice(given.pop("optimizer"), **given)
    if given:
        raise click.UsageError(f"--{min(given).replace('_', '-')} goes with --optimizer")
    return None
