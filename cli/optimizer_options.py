"""The options that say how a model's weights are updated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..runtime.updates.choice import Choice

_FOLDER = Path(__file__).parents[1] / "runtime" / "updates" / "optimizers"

OPTIMIZER_NAMES = sorted(path.stem for path in _FOLDER.glob("[!_]*.py"))
"""Names of the planned optimizers, taken from their files.

None is imported: they need torch, which takes seconds to load, too long for `--help` and completion.
"""

_OPTIONS = (
    click.option(
        "--optimizer",
        type=click.Choice(OPTIMIZER_NAMES),
        help="Update the weights, as the optimizer's step does: the graph has states and updates.",
    ),
    click.option(
        "--update",
        type=click.Choice(["in-backward", "after"]),
        help="Each weight right after its gradient, or all after backward.  [default: in-backward]",
    ),
    click.option(
        "--fused/--no-fused",
        default=None,
        help="By PyTorch's fused kernels, where there are some: several times as fast, with other bits.  "
        "[default: --fused]",
    ),
    click.option(
        "--lr", type=float, metavar="RATE", help="Learning rate; the optimizer's default, like all below."
    ),
    click.option("--weight-decay", type=float, metavar="FACTOR"),
    click.option("--betas", type=(float, float), metavar="B1 B2", help="Decay rates of the moving averages."),
    click.option("--eps", type=float, metavar="NUMBER", help="Added to divisors."),
    click.option("--amsgrad", is_flag=True, default=None, help="Divide by the largest average so far."),
    click.option(
        "--clip-norm", type=float, metavar="NORM", help="Scale all gradients to this norm, at most."
    ),
    click.option("--momentum", type=float, metavar="FACTOR", help="Share of the direction that is kept."),
    click.option("--nesterov", is_flag=True, default=None, help="Nesterov's momentum."),
)


def optimizer_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which hands them to `chosen`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def chosen(options: dict[str, Any]) -> Choice | None:
    """Return the chosen optimizer, None without --optimizer. Other options without it are bad usage."""
    from ..runtime.updates.choice import Choice

    given = {name: value for name, value in options.items() if value is not None}
    if "optimizer" in given:
        return Choice(given.pop("optimizer"), **given)
    if given:
        raise click.UsageError(f"--{min(given).replace('_', '-')} goes with --optimizer")
    return None
