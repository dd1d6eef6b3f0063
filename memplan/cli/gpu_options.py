"""Options of commands that estimate for a GPU: its host, and the lanes between them."""

from __future__ import annotations

from collections.abc import Callable

import click


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --host and --lanes, which describe the machine of --gpu, to a command."""
    for option in (
        click.option(
            "--lanes",
            type=click.Choice(["1", "2", "4", "8", "16"]),
            help="Number of PCIe lanes that the GPU has in its machine.  [default: all that it has]",
        ),
        click.option(
            "--host",
            metavar="64GB|64GB,16cores,80GB/s",
            help="Memory of the GPU's host, and its cores and memory bandwidth, for the speed of updates "
            "there.  [default: plan size assumes 64GB, else memory without limit]",
        ),
    ):
        command = option(command)
    return command
