"""`plan import`: a graph from a file of another tool."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from ..exchange.formats import FORMATS, Options, read
from ..graphs.errors import InputError
from ..graphs.files.files import save_graph
from ..graphs.machines.presets import described_preset
from ..graphs.units import parse_seconds
from ..planner.baseline import baseline
from .gpu_options import host_options
from .help import PlanCommand
from .known_names import completing, machines
from .options import FILE, destination_option, output_options
from .parameter_types import Word
from .printing.figures import made_document, made_rows
from .printing.output import Output, labelled
from .printing.output_files import destination_of, write_out


def unit_argument(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Parse --time-unit; a callback for click."""
    try:
        # A bare number is of seconds.
        seconds = None if text is None else parse_seconds(float(text) if text[-1:].isdigit() else text)
    except (InputError, ValueError) as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if seconds == 0:
        raise click.BadParameter("a unit of time must be above 0", ctx, param)
    return seconds


time_unit_option = click.option(
    "--time-unit",
    callback=unit_argument,
    metavar="1us",
    help="Duration of one time unit in FILE, as 1us or 0.001 (seconds).  [default: the format's]",
)


def dims_argument(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> dict[str, int] | None:
    """Parse --dim; a callback for click."""
    found: dict[str, int] = {}
    for text in given:
        name, equals, size = text.rpartition("=")
        if not (equals and name and size.isascii() and size.isdecimal() and 0 < int(size[:20]) < 2**40):
            raise click.BadParameter(f"{text!r} is not NAME=SIZE, as batch_size=8", ctx, param)
        # The same size twice is no contradiction.
        if found.setdefault(name, int(size)) != int(size):
            raise click.BadParameter(f"{name} is given as {found[name]} and as {size}", ctx, param)
    return found or None


def listed(names: Iterable[str]) -> str:
    """Return the list of formats as an epilog of --help."""
    return "\b\nFormats:\n" + "\n".join(f"  {name:10} {FORMATS[name].about}" for name in names)


READ = [name for name, one in FORMATS.items() if one.reads]


@click.command("import", cls=PlanCommand, epilog=listed(READ))
@click.argument("format_name", metavar="FORMAT", type=Word(READ))
@click.argument("file", type=FILE)
@destination_option("FILE.graph.json in the working folder")
@time_unit_option
@click.option(
    "--device", type=int, help="Number of the device, if FILE has several.  [default: the only one]"
)
@click.option(
    "--gpu",
    metavar="NAME",
    shell_complete=completing(machines),
    help="GPU for which times are estimated, if FILE has none, like rtx3060.  [default: no times]",
)
@host_options("memory without limit")
@click.option(
    "--dim",
    "dims",
    callback=dims_argument,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a dimension that FILE only names, as batch_size=8. May be given several times.",
)
@output_options
def import_(
    format_name: str,
    file: Path,
    destination: Path | None,
    time_unit: float | None,
    device: int | None,
    gpu: str | None,
    host: str | None,
    lanes: str | None,
    dims: dict[str, int] | None,
    output: Output,
) -> None:
    """Make a graph of a FILE that another tool has written.

    \b
    plan import moccasin instance.json -o graph.yaml
    """
    if gpu is None and (host or lanes):
        raise click.UsageError("--host and --lanes describe the machine of --gpu")
    to = destination_of(destination, file, ".graph.json")
    preset = None if gpu is None else described_preset(gpu, host, lanes)
    graph = read(format_name, file, Options(time_unit=time_unit, device=device, gpu=preset, dims=dims))
    # Solvers minimize time: with no times every schedule is as good.
    if not baseline(graph).time:
        output.note(f"{file}: all operations take 0 s: the file has no times, so only memory can be planned")
    written = write_out(to, partial(save_graph, graph))
    output.result(
        {**made_document(graph), "graph": written.name}, labelled([*made_rows(graph), *written.row()])
    )
    written.tell()
