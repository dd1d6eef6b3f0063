"""`plan export`: a graph as a file of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from ..exchange.formats import FORMATS, Options, write
from .help import PlanCommand
from .import_ import listed, time_unit_option
from .options import FILE, output_options, writable_export
from .parameter_types import DOCUMENT, Word
from .printing.output import Output, labelled
from .splits import whole_graph

WRITTEN = [name for name, one in FORMATS.items() if one.writes]


@click.command(cls=PlanCommand, epilog=listed(WRITTEN))
@click.argument("format_name", metavar="FORMAT", type=Word(WRITTEN))
@click.argument("graph_path", metavar="GRAPH", type=DOCUMENT)
@click.option(
    "-o", "--output", "destination", type=FILE, required=True, callback=writable_export, help="File to write."
)
@time_unit_option
@click.option("--lossy", is_flag=True, help="Drop information that the format cannot represent, and list it.")
@output_options
def export(
    format_name: str,
    graph_path: Path,
    destination: Path,
    time_unit: float | None,
    lossy: bool,
    output: Output,
) -> None:
    """Write GRAPH as a file for another tool.

    \b
    plan export moccasin graph.yaml -o instance.json
    """
    graph = whole_graph(graph_path, output)
    lost = write(format_name, graph, destination, Options(time_unit=time_unit, lossy=lossy))
    output.result(
        {"name": graph.name, "written": str(destination), "lost": lost},
        labelled([*(("lost", line) for line in lost), ("written", str(destination))]),
    )
