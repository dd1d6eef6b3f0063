"""plan-graph/1 and 2 from a document to columns. Every fault is one line: the file, the place, what is
wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..adjacency import Adjacency
from ..errors import InputError
from ..graph import Graph, Kind, Mode, Operations, Phase, Tensors
from .fields import (
    Row,
    check_fields,
    flag,
    indices,
    mapping,
    name_of,
    optional_text,
    seconds,
    sequence,
    size,
    text,
    word,
)
from .kinds import check_format
from .machine import machine_from_document
from .validate import validate

FORMAT = "plan-graph/1"
SHARDED_FORMAT = "plan-graph/2"
"""The version of graphs of ranks that communicate; all others have version 1."""

KINDS = {kind.word: kind for kind in Kind}
PHASES = {phase.word: phase for phase in Phase}
_TENSOR_FIELDS = ("name", "bytes", "kind"), ("layer",)
_SHARDED_TENSOR_FIELDS = ("name", "bytes", "kind"), ("layer", "spread", "share")
_OPERATION_FIELDS = (
    ("name", "phase", "time"),
    ("launch", "workspace", "reads", "writes", "mutates", "recompute", "random", "layer", "modes"),
)
_SHARDED_OPERATION_FIELDS = _OPERATION_FIELDS[0], (*_OPERATION_FIELDS[1], "queue")
_QUEUES = {"compute": False, "comm": True}
_MODE_FIELDS = (), ("time", "launch", "workspace", "writes", "reads_host", "writes_host", "on")
_GRAPH_FIELDS = ("format", "name", "tensors", "operations", "results"), ("source", "machine", "splits")
_PLACES = {"device": False, "host": True}


def graph_from_document(document: object, where: str) -> Graph:
    """Return the validated graph of a document. Raises InputError.

    where: the file's name, for messages.
    """
    try:
        row = mapping(document, "a graph")
        check_format(row, FORMAT, SHARDED_FORMAT)
        check_fields(row, *_GRAPH_FIELDS)
        first = row["format"] == FORMAT
        fields = _TENSOR_FIELDS if first else _SHARDED_TENSOR_FIELDS
        tensors, index = _tensors(sequence(row["tensors"], "tensors"), fields)
        fields = _OPERATION_FIELDS if first else _SHARDED_OPERATION_FIELDS
        graph = Graph(
            name=name_of(row),
            tensors=tensors,
            operations=_operations(sequence(row["operations"], "operations"), index, fields),
            results=indices(row["results"], "results", index),
            machine=None if row.get("machine") is None else machine_from_document(row["machine"]),
            source=mapping(row.get("source") or {}, "source"),
        )
        validate(graph)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return graph


def _tensors(
    rows: list[Any], fields: tuple[tuple[str, ...], tuple[str, ...]]
) -> tuple[Tensors, dict[str, int]]:
    names: list[str] = []
    sizes: list[int] = []
    kinds: list[Kind] = []
    layers: list[str | None] = []
    spread: list[int] = []
    shares: dict[int, int] = {}

    def add(row: Row) -> None:
        check_fields(row, *fields)
        if flag(row.get("spread", False), "spread"):
            spread.append(len(names))
        if "share" in row:
            # [-1:]: this tensor is the last that was added, if it is spread at all.
            if len(names) not in spread[-1:]:
                raise ValueError("'share' is of tensors with 'spread: true'")
            shares[len(names)] = size(row["share"], "share")
        names.append(name_of(row))
        sizes.append(size(row["bytes"], "bytes"))
        kinds.append(word(row["kind"], "kind", KINDS))
        layers.append(optional_text(row.get("layer"), "layer"))

    _each(rows, "tensors", add)
    index = _index(names, "tensor")
    columns = np.array(sizes, np.int64), np.array(kinds, np.uint8)
    return Tensors(names, *columns, layers, frozenset(spread), shares), index


def _operations(
    rows: list[Any], tensors: dict[str, int], fields: tuple[tuple[str, ...], tuple[str, ...]]
) -> Operations:
    names: list[str] = []
    phases: list[Phase] = []
    times: list[float] = []
    launches: list[float] = []
    workspaces: list[int] = []
    reads, writes, mutates = (list[list[int]]() for _ in range(3))
    recompute: list[bool] = []
    random: list[bool] = []
    layers: list[str | None] = []
    modes: dict[int, tuple[Mode, ...]] = {}
    comm: list[int] = []

    def add(row: Row) -> None:
        check_fields(row, *fields)
        if word(row.get("queue", "compute"), "queue", _QUEUES):
            comm.append(len(names))
        names.append(name_of(row))
        phases.append(word(row["phase"], "phase", PHASES))
        times.append(seconds(row["time"], "time"))
        launches.append(seconds(row.get("launch", 0.0), "launch"))
        workspaces.append(size(row.get("workspace", 0), "workspace"))
        reads.append(indices(row.get("reads", []), "reads", tensors))
        writes.append(indices(row.get("writes", []), "writes", tensors))
        mutates.append(indices(row.get("mutates", []), "mutates", tensors))
        recompute.append(flag(row.get("recompute", True), "recompute"))
        random.append(flag(row.get("random", False), "random"))
        layers.append(optional_text(row.get("layer"), "layer"))
        if row.get("modes"):
            # After the operation's own fields, with which a mode's are filled in.
            modes[len(names) - 1] = _modes(
                row,
                times[-1],
                launch=launches[-1],
                workspace=workspaces[-1],
                writes=writes[-1],
                tensors=tensors,
            )

    _each(rows, "operations", add)
    _index(names, "operation")
    return Operations(
        name=names,
        phase=np.array(phases, np.uint8),
        time=np.array(times, np.float64),
        workspace=np.array(workspaces, np.int64),
        reads=Adjacency.of(reads),
        writes=Adjacency.of(writes),
        mutates=Adjacency.of(mutates),
        recompute=np.array(recompute, np.bool_),
        random=np.array(random, np.bool_),
        layer=layers,
        modes=modes,
        launch=np.array(launches, np.float64),
        comm=frozenset(comm),
    )


def _modes(
    row: Row, time: float, launch: float, workspace: int, writes: list[int], tensors: dict[str, int]
) -> tuple[Mode, ...]:
    """Return the modes of one operation, with the fields that they leave out filled in from it."""
    found: list[Mode] = []
    for name, value in mapping(row["modes"], "field 'modes'").items():
        try:
            changes = mapping(value, "a mode")
            check_fields(changes, *_MODE_FIELDS)
            mode = Mode(
                name=text(name, "name"),
                time=seconds(changes["time"], "time") if "time" in changes else time,
                workspace=size(changes["workspace"], "workspace") if "workspace" in changes else workspace,
                writes=tuple(
                    # An empty list writes nothing; without the field the operation's own list counts.
                    indices(changes["writes"], "writes", tensors) if "writes" in changes else writes
                ),
                reads_host=tuple(indices(changes.get("reads_host", []), "reads_host", tensors)),
                on_host=word(changes.get("on", "device"), "on", _PLACES),
                launch=seconds(changes["launch"], "launch") if "launch" in changes else launch,
                writes_host=tuple(indices(changes.get("writes_host", []), "writes_host", tensors)),
            )
        except ValueError as error:
            raise ValueError(f"mode {name!r}: {error}") from None
        found.append(mode)
    return tuple(found)


def _each(rows: Iterable[Any], section: str, add: Callable[[Row], None]) -> None:
    """Apply `add` to every row; a fault names the row."""
    for position, row in enumerate(rows):
        try:
            add(mapping(row, "an entry"))
        except ValueError as error:
            name = row.get("name") if isinstance(row, dict) else None  # pyright: ignore
            label = f" ({name})" if isinstance(name, str) else ""
            raise ValueError(f"{section}[{position}]{label}: {error}") from None


def _index(names: list[str], what: str) -> dict[str, int]:
    index = {name: position for position, name in enumerate(names)}
    if len(index) != len(names):
        for position, name in enumerate(names):
            # The dict has the last position of a name: an earlier one differs from it.
            if index[name] != position:
                raise ValueError(f"{what}s[{index[name]}] ({name}): the name stands twice")
    return index
