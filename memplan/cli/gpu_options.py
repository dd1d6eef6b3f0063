"""Options of commands that estimate for a GPU: its host, and the lanes between them."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..graphs.machines.presets import ASSUMED, Preset, find_preset, with_host, with_lanes


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


def chosen_preset(gpu: str, host: str | None, lanes: str | None, assumed: str | None = None) -> Preset:
    """Return the machine of --gpu with what --host and --lanes say. Raises InputError, one line.

    assumed: a host for a machine of which nobody says how much memory its host has.
    """
    preset = find_preset(gpu)
    if lanes is not None:
        preset = with_lanes(preset, int(lanes))
    if host is None and assumed is not None and preset.machine.host_capacity is None:
        return with_host(preset, assumed, ASSUMED)
    return preset if host is None else with_host(preset, host)
