"""The section `splits` of a graph file: other graphs of the same iteration, with regions in pieces.

Each stands for the whole graph with some operations replaced. What both have in common is held once: an
operation or tensor that is as in the whole graph is its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import InputError
from ..graph import Graph
from .fields import Row, check_fields, mapping, sequence
from .read import graph_from_document
from .write import graph_to_document

SPLITS = "splits"
_FIELDS = ("tensors", "operations"), ("source",)
_ROWS = "tensors", "operations"


def splits_to_document(whole: Graph, splits: Sequence[Graph]) -> list[dict[str, Any]]:
    """Return what `splits_from_document` reads back.

    splits: graphs with the whole one's name, machine and results.
    """
    held = graph_to_document(whole)
    known = {part: {row["name"]: row for row in held[part]} for part in _ROWS}
    found: list[dict[str, Any]] = []
    for split in splits:
        row = graph_to_document(split)
        source = {key: value for key, value in split.source.items() if whole.source.get(key) != value}
        entry: dict[str, Any] = {"source": source} if source else {}
        for part in _ROWS:
            entry[part] = [one["name"] if known[part].get(one["name"]) == one else one for one in row[part]]
        found.append(entry)
    return found


def splits_from_document(document: Row, where: str) -> list[Graph]:
    """Return the validated graphs of the section; none without it. Raises InputError.

    document: a valid graph's. where: the file's name, for messages.
    """
    known = {part: {row["name"]: row for row in document[part]} for part in _ROWS}
    try:
        entries = sequence(document.get(SPLITS, []), SPLITS)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return [_split(entry, document, known, f"{where}: {SPLITS}[{k}]") for k, entry in enumerate(entries)]


def _split(entry: object, document: Row, known: dict[str, dict[str, Row]], where: str) -> Graph:
    try:
        row = mapping(entry, "an entry")
        check_fields(row, *_FIELDS)
        sources = [mapping(each.get("source") or {}, "source") for each in (document, row)]
        rows = {part: list(_rows(sequence(row[part], part), known[part], part)) for part in _ROWS}
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    shared = {key: value for key, value in document.items() if key != SPLITS}
    return graph_from_document({**shared, **rows, "source": sources[0] | sources[1]}, where)


def _rows(rows: list[Any], known: dict[str, Row], part: str) -> Iterator[Any]:
    for place, row in enumerate(rows):
        if isinstance(row, str) and row not in known:
            raise ValueError(f"{part}[{place}]: the graph has no {row!r}")
        yield known[row] if isinstance(row, str) else row
