"""H-Partition of odd graphs with any limits: every operation has one place, in an order that is valid."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import NamedTuple

from memplan.graphs.errors import InputError
from memplan.graphs.files.files import save_graph
from memplan.graphs.graph import Graph
from memplan.graphs.partition.partition import partition
from memplan.graphs.structure.valid_order import is_valid_order
from odd_graphs import odd_graph
from training_graphs import training

from .area import Area, Fault, Verdict
from .graphs import smaller_graphs


class PartitionCase(NamedTuple):
    graph: Graph
    top: int
    lower: int
    alpha: float
    tolerance: float


class Partitions(Area):
    name = "partition"

    def warm_up(self) -> None:
        partition(training(3, 0), top=2)

    def make(self, random: Random) -> PartitionCase:
        large = random.random() < 0.3
        graph = (
            training(random.randint(3, 12), random.randrange(10**6), skip=0.3, update="end")
            if large
            else odd_graph(random)
        )
        return PartitionCase(
            graph,
            random.choice((0, 1, 1, 2, 3, 8, 30)),
            random.choice((1, 2, 2, 3, 5, 20)),
            random.choice((0.0, 0.5, 0.5, 1.0, 8.0, 9.0)),
            random.choice((0.0, 0.2, inf, -1.0)),
        )

    def judge(self, case: PartitionCase) -> Verdict:
        graph, *limits = case
        settings = dict(zip(("top", "lower", "alpha", "tolerance"), limits, strict=True))
        try:
            found = partition(graph, **settings)  # pyright: ignore
        except InputError:
            return Verdict([], {"refused": 1})
        except Exception as error:
            return Verdict([Fault(type(error).__name__, f"{type(error).__name__}: {error}")], {})
        faults: list[Fault] = []
        root = found.root
        parts = (root.forward, found.middle, root.backward, found.after)
        if sorted(o for part in parts for o in part.tolist()) != list(range(len(graph.operations))):
            faults.append(Fault("places", "not every operation has one place"))
        if not is_valid_order(graph, found.order()):
            faults.append(Fault("order", "its order is not valid"))
        if len(root.children) > case.top:
            faults.append(Fault("top", f"{len(root.children)} nodes at the top, at most {case.top}"))
        return Verdict(faults, {})

    def smaller(self, case: PartitionCase) -> Iterator[PartitionCase]:
        for graph in smaller_graphs(case.graph):
            yield case._replace(graph=graph)

    def write(self, case: PartitionCase, folder: Path, fault: Fault | None) -> list[str]:
        save_graph(case.graph, folder / "graph.json")
        limits = f"--top {case.top} --lower {case.lower} --alpha {case.alpha} --tolerance {case.tolerance}"
        return [f"plan partition graph.json {limits}"]


AREA = Partitions()
