"""`plan partition`: the clusters that Hiremate would solve, as a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ..graphs.clusters.clusters import Cluster, Partition
from ..graphs.clusters.dot import dot
from ..graphs.clusters.interface import Spans
from ..graphs.errors import InputError
from ..graphs.partition.partition import ALPHA, LOWER, TOLERANCE, TOP
from ..graphs.partition.partition import partition as partition_of
from ..graphs.units import format_bytes
from .export_views import write_view
from .help import PlanCommand
from .options import FILE, output_options, writable_as
from .parameter_types import DOCUMENT
from .printing.figures import graph_row
from .printing.output import Output, labelled, table
from .splits import whole_graph

Row = dict[str, Any]


@click.command(cls=PlanCommand)
@click.argument("graph_path", metavar="GRAPH", type=DOCUMENT)
@click.option(
    "--top", type=int, default=TOP, show_default=True, help="Largest number of nodes of the top level (M^t)."
)
@click.option(
    "--lower", type=int, default=LOWER, show_default=True, help="Largest number of nodes of a cluster (M^l)."
)
@click.option(
    "--alpha",
    type=float,
    default=ALPHA,
    show_default=True,
    help="Weight of the size in a cluster's score (α).",
)
@click.option(
    "--tolerance",
    type=float,
    default=TOLERANCE,
    show_default=True,
    help="Largest difference between times of identical clusters, as a share of their sum.",
)
@click.option(
    "--depth", type=click.IntRange(0), default=1, show_default=True, help="Number of levels to show."
)
@click.option(
    "--dot",
    "dot_path",
    type=FILE,
    callback=writable_as(".dot", ".gv"),
    help="File for Graphviz, .dot or .gv: the forward part, to the same depth.  [default: none]",
)
@output_options
def partition(
    graph_path: Path,
    top: int,
    lower: int,
    alpha: float,
    tolerance: float,
    depth: int,
    dot_path: Path | None,
    output: Output,
) -> None:
    """Show the clusters of GRAPH: convex groups of operations, small between each other (H-Partition).

    \b
    plan partition graph.yaml
    """
    graph = whole_graph(graph_path, output)
    try:
        found = partition_of(graph, top=top, lower=lower, alpha=alpha, tolerance=tolerance)
    except InputError as error:
        raise click.UsageError(str(error)) from None
    if dot_path is not None:
        write_view(dot(found, depth).encode(), dot_path)
    summary = _summary(found)
    rows = list(_rows(found.root, Spans.of(found), _Letters(), depth))
    settings = {
        "top": top,
        "lower": lower,
        "alpha": alpha,
        "tolerance": None if tolerance == inf else tolerance,
    }
    output.result(
        {"graph": graph.name, **settings, **summary, "clusters": rows},
        _lines(found, summary, rows),
    )


def _summary(found: Partition) -> Row:
    clusters = list(found.root.walk())
    return {
        "top_level": len(found.root.children),
        "levels": found.levels,
        "count": len(clusters),
        "distinct": len({cluster.identity for cluster in clusters}),
        "middle": len(found.middle),
        "after": len(found.after),
    }


class _Letters:
    """Short names for identities: A … Z, AA, AB …, in the order in which they are requested."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def __call__(self, identity: str) -> str:
        return self._names.setdefault(identity, _letters(len(self._names)))


def _letters(number: int) -> str:
    last = chr(ord("A") + number % 26)
    # Minus 1: after Z comes AA, so there is no digit zero.
    return last if number < 26 else _letters(number // 26 - 1) + last


def _rows(
    cluster: Cluster, spans: Spans, letters: Callable[[str], str], depth: int, level: int = 0
) -> Iterator[Row]:
    graph, between = cluster.partition.graph, spans.interface(cluster)
    yield {
        "level": level,
        "identity": letters(cluster.identity),
        "children": len(cluster.children),
        "forward": [graph.operations.name[o] for o in cluster.forward.tolist()],
        "backward": [graph.operations.name[o] for o in cluster.backward.tolist()],
        "bytes_in": between.reads,
        "bytes_out": between.makes,
        "layers": _layers(cluster),
    }
    if level < depth:
        for child in cluster.children:
            yield from _rows(child, spans, letters, depth, level + 1)


def _layers(cluster: Cluster) -> list[str]:
    """Return the first and the last layer of its forward operations, one if they are the same."""
    layers = (cluster.partition.graph.operations.layer[o] for o in map(int, cluster.forward))
    named = [layer for layer in layers if layer]
    return list(dict.fromkeys([named[0], named[-1]])) if named else []


def _lines(found: Partition, summary: Row, rows: list[Row]) -> Iterator[Text]:
    yield from labelled(
        [
            graph_row(found.graph),
            (
                "clusters",
                f"{summary['count']:,}, {summary['distinct']:,} distinct, {summary['levels']} levels",
            ),
            ("apart", f"{summary['middle']:,} at the loss, {summary['after']:,} after the backward part"),
        ]
    )
    yield Text("")
    heads = ["forward", "backward", "nodes", "in", "out", "identical", "layers"]
    yield from table(heads, map(_cells, rows))


def _cells(row: Row) -> list[str]:
    name = " … ".join(row["layers"]) or (row["forward"] or row["backward"] or ["nothing"])[0]
    return [
        f"{len(row['forward']):,}",
        f"{len(row['backward']):,}",
        f"{row['children']:,}" if row["children"] else "",
        format_bytes(row["bytes_in"]),
        format_bytes(row["bytes_out"]),
        row["identity"],
        "  " * row["level"] + name,
    ]
