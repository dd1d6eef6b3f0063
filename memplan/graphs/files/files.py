"""Graph files: read and validated, written, and recognized by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

from ..collector import collector_off
from ..errors import InputError
from ..graph import Graph
from .documents import document_suffix, read_document, write_document
from .fields import Row
from .read import graph_from_document
from .splits import SPLITS, splits_from_document, splits_to_document
from .write import graph_to_document, rows_of

_ROWS_AT_A_TIME = 1000


@collector_off()
def load_graph(path: str | Path) -> Graph:
    """Read a plan-graph/1 or 2, without its splits.

    Raises InputError: one line with the file, the place and the fault.
    """
    path = Path(path)
    return graph_from_document(read_document(path), str(path))


@collector_off()
def load_graphs(path: str | Path) -> list[Graph]:
    """Read a plan-graph/1 or 2, and after it its splits: the same iteration with regions in pieces.

    Raises InputError: one line with the file, the place and the fault.
    """
    path = Path(path)
    document = read_document(path)
    graph = graph_from_document(document, str(path))
    return [graph, *splits_from_document(cast("Row", document), str(path))]


def save_graph(graph: Graph, path: str | Path, splits: Sequence[Graph] = ()) -> None:
    """Write a plan-graph/1, or 2 if ranks communicate, in the format of the suffix; the same graph gives
    the same bytes.

    splits: the same iteration with regions in pieces.
    """
    document = graph_to_document(graph)
    if splits:
        document[SPLITS] = splits_to_document(graph, splits)
    write_document(document, Path(path))


@collector_off()
def graph_digest(graph: Graph) -> str:
    """Return the SHA-256 of what a schedule depends on: tensors, operations and results, not source or
    machine.

    It does not depend on whether the graph is kept as JSON or YAML.
    """
    # Hashes the JSON text [[tensors],[operations],[results]] piece by piece, without holding all of it.
    digest, encode = hashlib.sha256(), json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
    for opening, rows in zip("[,,", rows_of(graph).values(), strict=True):
        digest.update(f"{opening}[".encode())
        between = ""
        while some := list(islice(rows, _ROWS_AT_A_TIME)):
            digest.update((between + encode(some)[1:-1]).encode())  # [1:-1]: without this piece's brackets
            between = ","
        digest.update(b"]")
    digest.update(b"]")
    return digest.hexdigest()


def graph_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the graphs among a folder's JSON and YAML files, and the others of these, by name."""
    graphs: list[Path] = []
    others: list[Path] = []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with suppress(InputError):
            document_suffix(path)
            (graphs if _is_graph(path) else others).append(path)
    return graphs, others


def _is_graph(path: Path) -> bool:
    """Tell whether a file is a graph file of any version; load_graph reports what is wrong with it."""
    try:
        document = read_document(path)
    except InputError:
        return False
    named = cast(Any, document).get("format") if isinstance(document, dict) else None
    return isinstance(named, str) and named.startswith("plan-graph/")
