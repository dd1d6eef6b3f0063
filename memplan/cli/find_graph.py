"""The graph of a schedule, found by the sha256 in the schedule among the files next to it."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..graphs.errors import InputError
from ..graphs.files.documents import document_suffix, regular_size
from ..graphs.files.files import graph_digest, load_graphs
from ..graphs.graph import Graph

_HEAD_BYTES = 4096
"""Bytes in which a graph file names its format."""


def recorded_graph(document: object) -> tuple[str, str] | None:
    """Return name and sha256 of the graph that a schedule's document records; None if it has none."""
    row: Any = document.get("graph") if isinstance(document, dict) else None  # pyright: ignore
    digest: Any = row.get("sha256") if isinstance(row, dict) else None  # pyright: ignore
    if not isinstance(digest, str):
        return None
    return str(row.get("name")), digest.removeprefix("sha256:")  # pyright: ignore


def is_of_digest(graph: Graph, path: Path, digest: str) -> bool:
    """Tell whether a SHA-256 is that of the graph's content, or of its file's bytes."""
    return has_digest(graph, digest) or digest in _file_digests(path)


def has_digest(graph: Graph, digest: str) -> bool:
    """Tell whether a SHA-256 is that of the graph's content."""
    return digest == graph_digest(graph)


def load_graph_of(path: Path, document: object) -> Graph:
    """Read that graph of a file which a schedule's document records: the whole one, or one in pieces.

    If it records another, the whole one is returned. Raises InputError.
    """
    graphs, made_for = load_graphs(path), recorded_graph(document)
    return next((one for one in graphs[1:] if made_for and has_digest(one, made_for[1])), graphs[0])


def find_graph(schedule_path: Path, document: object) -> tuple[Path, Graph]:
    """Return the graph that a schedule was made for, from its folder or the working folder.

    Files that name the graph's name at their beginning are read first.

    Raises InputError if the schedule records no graph, or no file there is that graph.
    """
    made_for = recorded_graph(document)
    if made_for is None:
        raise InputError(f"{schedule_path} does not say which graph it was made for: give --graph FILE")
    name, digest = made_for
    heads = {path: head for path in _documents(schedule_path) if b"plan-graph/" in (head := _head(path))}
    # False comes first: files that have the name.
    for path in sorted(heads, key=lambda path: name.encode() not in heads[path]):
        with suppress(InputError):  # not a graph that can be read: another may be
            if is_of_digest(graph := load_graph_of(path, document), path, digest):
                return path, graph
    raise InputError(
        f"{schedule_path} was made for the graph {name!r} (sha256 {digest[:12]}…), and no file in its folder "
        "or the working folder has it: give --graph FILE"
    )


def _documents(schedule_path: Path) -> Iterator[Path]:
    """Yield the JSON and YAML files next to the schedule, then those in the working folder."""
    folders = [schedule_path.parent, Path()]
    if folders[0].resolve() == folders[1].resolve():
        folders.pop()
    for folder in folders:
        paths: list[Path] = []
        with suppress(OSError):  # a folder that may be entered, not listed
            paths = sorted(folder.iterdir())
        for path in paths:
            with suppress(InputError):
                document_suffix(path)
                regular_size(path)
                yield path


def _head(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


def _file_digests(path: Path) -> set[str]:
    regular_size(path)
    raw = path.read_bytes()
    contents = [raw, gzip.decompress(raw)] if path.suffix == ".gz" else [raw]
    return {hashlib.sha256(content).hexdigest() for content in contents}
