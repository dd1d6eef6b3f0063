"""A graph as flat arrays, for the inner loops of the search.

A *variant* is an operation in one of its execution variants on the device. An *item* is what a sequence keeps
events of: the tensors that come and go (the resident ones always stay), then the operations, as items of size
0.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from ....graphs.arrays import Ints
from ....graphs.graph import Graph
from ....planner.schedule.sequence import Run
from ...stages.slots import DeviceVariant, needed_tensors, variants_of


class Instance(NamedTuple):
    """Records of a graph, since compiled code takes few arrays better than many.

    variants: (operation, mode, seconds, launch, workspace, writes_start, writes_end).
    operations: (default, recomputable, reads_…, before_…, after_…, earlier, later). default: its baseline
        variant. before, after: the operations whose runs come after (before) all of its own, since one
        changes what the other touches. earlier, later: the random operations next to it in traced order, or
        −1.
    items: (size, summed, producer). summed: a tensor of several contributions. producer: the fastest variant
        that makes the tensor; −1 for summed tensors and operations.
    members: the lists; `reads_start … reads_end − 1` are the indices of one, and so on.
    always: bytes of what is resident.
    results: tensors that must exist at the end.
    tensors: their number.
    """

    variants: Any
    operations: Any
    items: Any
    members: Ints
    results: Ints
    always: int
    tensors: int


_VARIANT = np.dtype(
    [("operation", np.int64), ("mode", np.int64), ("workspace", np.int64)]
    + [("seconds", np.float64), ("launch", np.float64)]
    + [(f"writes_{end}", np.int64) for end in ("start", "end")]
)
_LISTS = ("reads", "before", "after")
_OPERATION = np.dtype(
    [("default", np.int64), ("recomputable", np.bool_), ("earlier", np.int64), ("later", np.int64)]
    + [(f"{name}_{end}", np.int64) for name in _LISTS for end in ("start", "end")]
)
_ITEM = np.dtype([("size", np.int64), ("summed", np.bool_), ("producer", np.int64)])


def instance_of(graph: Graph) -> Instance:
    columns, count, tensors = graph.operations, len(graph.operations), len(graph.tensors)
    resident = graph.resident
    unread = _unread_sums(graph)
    every = [
        (o, _without_sums(graph, variant, unread)) for o in range(count) for variant in variants_of(graph, o)
    ]
    reads = [[x for x in graph.input_lists[o] if not resident[x]] for o in range(count)]
    members = list[int]()

    items = np.zeros(tensors + count, _ITEM)
    items["size"][:tensors] = graph.tensors.bytes
    items["summed"][:tensors] = graph.producers.counts() > 1
    items["producer"] = -1

    variants = np.zeros(len(every), _VARIANT)
    for name, values in (
        ("operation", [o for o, _variant in every]),
        ("mode", [variant.mode for _o, variant in every]),
    ):
        variants[name] = values
    variants["seconds"] = [variant.time for _o, variant in every]
    variants["launch"] = [variant.launch for _o, variant in every]
    variants["workspace"] = [variant.workspace for _o, variant in every]
    _append(members, variants, "writes", [variant.writes for _o, variant in every])

    operations = np.zeros(count, _OPERATION)
    # Variants are sorted by operation, the default one first.
    operations["default"] = np.searchsorted(variants["operation"], np.arange(count))
    # An operation that changes a tensor in place would change it twice.
    operations["recomputable"] = columns.recompute & (columns.mutates.counts() == 0)
    operations["earlier"], operations["later"] = _neighbours(np.flatnonzero(columns.random), count)
    before, after = _sides(graph)
    for name, rows in zip(_LISTS, (reads, before, after), strict=True):
        _append(members, operations, name, rows)

    _find_producers(items, operations, every)
    return Instance(
        variants=variants,
        operations=operations,
        items=items,
        members=np.array(members, np.int64),
        results=np.array([x for x in graph.results if not resident[x]], np.int64),
        always=graph.resident_bytes,
        tensors=tensors,
    )


def _unread_sums(graph: Graph) -> set[int]:
    """Return the tensors of several contributions that no operation touches afterwards and that are no
    results."""
    unread = ~needed_tensors(graph) & ~graph.resident
    return set(np.flatnonzero(unread & (graph.producers.counts() > 1)).tolist())


def _without_sums(graph: Graph, variant: DeviceVariant, unread: Set[int]) -> DeviceVariant:
    """Return the variant with its writes to unread sums as workspace.

    Such a sum is deleted after each of its contributions (`schedule_of`). As an item it would be kept from
    the first to the last, since a contribution (ADD) keeps what is there, so the peak would be too high.
    """
    dropped = unread & set(variant.writes)
    if not dropped:
        return variant
    size = sum(graph.tensors.bytes.item(x) for x in dropped)
    rest = tuple(x for x in variant.writes if x not in dropped)
    return replace(variant, workspace=variant.workspace + size, writes=rest)


def _find_producers(items: Any, operations: Any, variants: Iterable[tuple[int, DeviceVariant]]) -> None:
    """Find the fastest run that makes each tensor.

    An operation that adds to a summed tensor runs once; every other tensor is recomputed by that fastest run.
    """
    fastest: dict[int, float] = {}
    for number, (operation, variant) in enumerate(variants):
        for x in variant.writes:
            if items["summed"][x]:
                operations["recomputable"][operation] = False
            elif variant.time < fastest.get(x, inf):
                fastest[x] = variant.time
                items["producer"][x] = number


def variants_in(instance: Instance, runs: Iterable[Run]) -> Ints:
    """Return a sequence of runs as variants."""
    number = {
        (operation, mode): variant
        for variant, (operation, mode) in enumerate(
            zip(instance.variants["operation"].tolist(), instance.variants["mode"].tolist(), strict=True)
        )
    }
    return np.array([number[run] for run in runs], np.int64)


def runs_in(instance: Instance, variants: Ints) -> list[Run]:
    chosen = instance.variants[variants]
    return list(zip(chosen["operation"].tolist(), chosen["mode"].tolist(), strict=True))


def _append(members: list[int], records: Any, name: str, rows: Iterable[Iterable[int]]) -> None:
    """Append the rows to the members, and enter in the records where each is."""
    for number, row in enumerate(rows):
        records[f"{name}_start"][number] = len(members)
        members.extend(row)
        records[f"{name}_end"][number] = len(members)


def _sides(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Return per operation those that its runs precede and follow, as one changes what the other touches."""
    count = len(graph.operations)
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for x, changes in enumerate(graph.mutators.lists()):
        if not changes:
            continue
        touching = {*graph.consumers[x].tolist(), *graph.producers[x].tolist(), *changes}
        for change in changes:
            for operation in sorted(touching - {change}):
                first, second = min(operation, change), max(operation, change)
                before[first].append(second)
                after[second].append(first)
    return before, after


def _neighbours(members: Ints, count: int) -> tuple[Ints, Ints]:
    earlier, later = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    earlier[members[1:]] = members[:-1]
    later[members[:-1]] = members[1:]
    return earlier, later
