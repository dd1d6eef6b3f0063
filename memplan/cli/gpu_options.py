"""Options of commands that estimate for a GPU: its host, and the lanes between them."""

from __future__ import annotations

from collections.abc import Callable

import click


def host_options(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what adds --host and --lanes, which describe the machine of a GPU, to a command.

    default: of --host, in words.
    """
    options = (
        click.option(
            "--lanes",
            type=click.Choice(["1", "2", "4", "8", "16"]),
            help="Number of PCIe lanes that the GPU has in its machine.  [default: all that it has]",
        ),
        click.option(
            "--host",
            metavar="64GB|64GB,16cores,80GB/s",
            help="Memory of the GPU's host, and its cores and memory bandwidth, for the speed of updates "
            f"there.  [default: {default}]",
        ),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in options:
            command = option(command)
        return command

    return add
