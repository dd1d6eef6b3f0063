"""The options that say how a model's weights are updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..runtime.updates.optimizers import Choice

_OPTIONS = (
    click.option(
        "--optimizer",
        type=click.Choice(["adamw", "adam", "sgd"]),
        help="Update the weights, as torch.optim does: the graph has states and updates.",
    ),
    click.option(
        "--update",
        type=click.Choice(["in-backward", "after"]),
        help="Each weight right behind its gradient, or all behind backward.  [default: in-backward]",
    ),
    click.option(
        "--fused/--no-fused",
        default=None,
        help="By PyTorch's fused kernels: some times as fast, with other bits.  [default: --fused]",
    ),
    click.option(
        "--lr", type=float, metavar="RATE", help="Learning rate; PyTorch's default, like all below."
    ),
    click.option("--weight-decay", type=float, metavar="FACTOR"),
    click.option("--betas", type=(float, float), metavar="B1 B2", help="Of adamw and adam."),
    click.option("--eps", type=float, metavar="NUMBER", help="Of adamw and adam."),
    click.option("--amsgrad", is_flag=True, default=None, help="Of adamw and adam."),
    click.option(
        "--clip-norm", type=float, metavar="NORM", help="Scale all gradients to this norm, at most."
    ),
    click.option("--momentum", type=float, metavar="FACTOR", help="Of sgd."),
    click.option("--nesterov", is_flag=True, default=None, help="Of sgd."),
)


def optimizer_options(function: Callable[..., None]) -> Callable[..., None]:
    """The command gets them by name; `chosen` takes them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def chosen(options: dict[str, Any]) -> Choice | None:
    """None without --optimizer; then the other options are bad usage."""
    from ..runtime.updates.optimizers import Choice

    given = {name: value for name, value in options.items() if value is not None}
    if "optimizer" in given:
        return Choice(given.pop("optimizer"), **given)
    if given:
        raise click.UsageError(f"--{min(given).replace('_', '-')} goes with --optimizer")
    return None
