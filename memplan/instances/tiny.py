"""Graphs of up to 14 operations with the least time for every budget, found by exhaustive search."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..graphs.draft import Draft
from ..graphs.errors import InputError
from ..graphs.graph import Graph

FILE = Path(__file__).parent / "public" / "oracles" / "tiny_exact_remat.json"


class Tiny(NamedTuple):
    """A small graph, whose operations have one output each, and its exact optima.

    min_memory: bytes.
    seconds: of all operations.
    optima: budgets in bytes with their minimum seconds, None if infeasible.
    whole: whether every operation leads to a target. The optima require the targets alone, so only then are
        they comparable.
    """

    graph: Graph
    min_memory: int
    seconds: float
    optima: list[tuple[int, float | None]]
    whole: bool


@cache
def tiny_graphs() -> tuple[Tiny, ...]:
    """Return all 105 graphs."""
    found: list[Tiny] = []
    for instance in json.loads(FILE.read_text())["instances"]:
        preds: list[list[int]] = instance["preds"]
        draft = Draft(instance["name"])
        made = [draft.tensor(f"t{node}", size) for node, size in enumerate(instance["mem"])]
        needed: set[int] = set(instance["targets"])
        # From the last: whether a node is needed is known before what it reads is marked.
        for node, reads in reversed(list(enumerate(preds))):
            needed.update(reads if node in needed else [])
        for node, reads in enumerate(preds):
            inputs = [made[read] for read in reads]
            draft.operation(f"n{node}", time=instance["time"][node], reads=inputs, writes=[made[node]])
        whole = len(needed) == instance["n"]
        min_memory, seconds = instance["node_lower_bound"], instance["sum_time"]
        optima = [(budget, best) for budget, best in instance["pareto"]]
        found.append(Tiny(draft.graph(), min_memory, seconds, optima, whole))
    return tuple(found)


def tiny_graph(name: str) -> Graph:
    """Return the graph of this name. Raises InputError if there is none."""
    for tiny in tiny_graphs():
        if tiny.graph.name == name:
            return tiny.graph
    raise InputError(f"unknown tiny graph {name!r}")
