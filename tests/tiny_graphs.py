"""Graphs of up to 14 nodes with the least time for every budget: instances/public/tiny_exact_remat.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph


class Tiny(NamedTuple):
    """One output an operation. floor: bytes. seconds: of all. optima: (bytes, least seconds or None).

    whole: every operation leads to a target, which the optima ask for alone; only then do they compare.
    """

    graph: Graph
    floor: int
    seconds: float
    optima: list[tuple[int, float | None]]
    whole: bool


def tiny_graphs(public: Path) -> list[Tiny]:
    found: list[Tiny] = []
    for instance in json.loads((public / "tiny_exact_remat.json").read_text())["instances"]:
        draft = Draft(instance["name"])
        made = [draft.tensor(f"t{node}", size) for node, size in enumerate(instance["mem"])]
        needed = set(instance["targets"])
        for node, reads in reversed(list(enumerate(instance["preds"]))):
            needed.update(reads if node in needed else [])
        for node, reads in enumerate(instance["preds"]):
            inputs = [made[read] for read in reads]
            draft.operation(f"n{node}", time=instance["time"][node], reads=inputs, writes=[made[node]])
        whole = len(needed) == instance["n"]
        floor, seconds = instance["node_lower_bound"], instance["sum_time"]
        found.append(Tiny(draft.graph(), floor, seconds, instance["pareto"], whole))
    return found
