"""Which nodes of an H-graph may run in which stage: stage t ends with the first run of node t.

Only what node t needs, directly or not, may run again in stage t: whatever else runs there could run later.
The loss, what follows it and what can't be repeated run in their own stage alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ....graphs.closure import closure
from .graph import Choice, HGraph, Node

Slot = tuple[int, int]


@dataclass(frozen=True)
class Stages:
    """allowed: per stage, its nodes in order. last: per node, its last stage."""

    allowed: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]


def stages_of(graph: HGraph) -> Stages:
    reads = [_reads(node) for node in graph.nodes]
    forward = {node.pair: k for k, node in enumerate(graph.nodes) if node.pair is not None and k < graph.loss}
    allowed: list[tuple[int, ...]] = []
    for stage, node in enumerate(graph.nodes):
        needed = [k for x in reads[stage] for k in graph.makers[x]]
        if stage <= graph.loss:
            needed = [k for k in needed if k < stage - 1]  # what the stage before has made is there
        elif node.pair is not None:
            needed.append(forward[node.pair])

        def before(k: int, stage: int = stage) -> Iterator[int]:
            return _repeatable(graph, (maker for x in reads[k] for maker in graph.makers[x]), stage)

        allowed.append((*sorted(closure(_repeatable(graph, needed, stage), before)), stage))
    last = list(range(len(graph.nodes)))
    for stage, nodes in enumerate(allowed):
        for k in nodes:
            last[k] = stage
    return Stages(tuple(allowed), tuple(last))


def choices_at(graph: HGraph, slot: Slot) -> list[Choice]:
    """What may be chosen there."""
    stage, k = slot
    node = graph.nodes[k]
    if stage == k:
        return list(node.first)
    if node.pair is not None and graph.backward_of[node.pair] == stage:
        return [*node.turn, *node.recompute]
    return list(node.recompute)


def _repeatable(graph: HGraph, nodes: Iterable[int], stage: int) -> Iterator[int]:
    return (k for k in nodes if k < stage and graph.nodes[k].recompute)


def _reads(node: Node) -> set[int]:
    return {x for choice in (*node.first, *node.recompute, *node.turn) for x in choice.run.reads}
