"""`plan solvers`: the algorithms by name, what each accepts, where it comes from."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..solvers import registry
from .options import output_options
from .output import Output, table


@click.command()
@output_options
def solvers(output: Output) -> None:
    """List the solvers: name, what each accepts, its source and its settings."""
    entries = registry.entries()
    rows = [[entry.name, entry.accepts, entry.source, entry.summary] for entry in entries]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    padded = [[cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)] for row in rows]
    heads = [head.ljust(width) for head, width in zip(["name", "accepts", "source"], widths, strict=True)]
    output.result({"solvers": [asdict(entry) for entry in entries]}, table([*heads, "what it does"], padded))
