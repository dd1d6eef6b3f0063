"""Graphs as documents, made smaller: fewer operations and tensors, then plainer ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

from memplan.graphs.errors import InputError
from memplan.graphs.files.read import graph_from_document
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.graph import Graph

from .shrink import without

Document = dict[str, Any]


def smaller_graphs(graph: Graph) -> Iterator[Graph]:
    """Valid ones only."""
    document = graph_to_document(graph)
    for candidate in _candidates(document):
        if candidate != document:
            with suppress(InputError):
                yield graph_from_document(candidate, "smaller")


def _candidates(document: Document) -> Iterator[Document]:
    for part in ("operations", "tensors", "results"):
        for rows in without(document[part]):
            yield _consistent({**document, part: rows})
    for part in ("source", "machine"):
        yield {key: value for key, value in document.items() if key != part}
    for index, row in enumerate(document["operations"]):
        for field in ("reads", "mutates", "writes"):
            for names in without(row.get(field, [])):
                yield _with_row(document, "operations", index, {**row, field: names})
        for field in ("modes", "launch", "random", "recompute", "workspace", "layer", "mutates"):
            if field in row:
                yield _with_row(document, "operations", index, {k: v for k, v in row.items() if k != field})
        for mode in row.get("modes", {}):
            modes = {name: changes for name, changes in row["modes"].items() if name != mode}
            yield _with_row(document, "operations", index, {**row, "modes": modes})
        if row["time"] not in (0, 1):
            yield _with_row(document, "operations", index, {**row, "time": 1})
        if row["phase"] != "forward":
            yield _with_row(document, "operations", index, {**row, "phase": "forward"})
    for index, row in enumerate(document["tensors"]):
        if row["bytes"] not in (0, 1):
            yield _with_row(document, "tensors", index, {**row, "bytes": 1})
        if "layer" in row:
            yield _with_row(document, "tensors", index, {k: v for k, v in row.items() if k != "layer"})
    if len(document["name"]) > 1:
        yield {**document, "name": "g"}


def _with_row(document: Document, part: str, index: int, row: Document) -> Document:
    rows = list(document[part])
    rows[index] = row
    return {**document, part: rows}


def _consistent(document: Document) -> Document:
    """Without the names of tensors that are gone, or that nobody makes any more."""
    document = deepcopy(document)
    made = {name for row in document["operations"] for name in row["writes"]}
    there = {
        row["name"]
        for row in document["tensors"]
        if row["name"] in made or row["kind"] in ("input", "parameter", "buffer", "optimizer_state")
    }
    known = {row["name"] for row in document["tensors"]}
    document["results"] = [name for name in document["results"] if name in there]
    for row in document["operations"]:
        row["reads"] = [name for name in row["reads"] if name in there]
        row["mutates"] = [name for name in row.get("mutates", []) if name in there]
        row["writes"] = [name for name in row["writes"] if name in known]
        for changes in row.get("modes", {}).values():
            for field in ("writes", "reads_host", "writes_host"):
                if field in changes:
                    changes[field] = [name for name in changes[field] if name in row[field.split("_")[0]]]
    return document
