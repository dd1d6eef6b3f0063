"""Which nodes of an H-graph may run in which stage: stage t ends with the first run of node t.

Only what node t needs, directly or not, may run again in stage t: whatever else runs there could run later.
The loss, what follows it and what can't be repeated run in their own stage alone.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        found = {stage}
        if stage <= graph.loss:
            just = stage - 1  # what the stage before has made is there
            todo = [k for x in reads[stage] for k in graph.makers[x] if k < just]
        else:
            todo = [k for x in reads[stage] for k in graph.makers[x]]
            if node.pair is not None:
                todo.append(forward[node.pair])
        while todo:
            k = todo.pop()
            if k not in found and k < stage and graph.nodes[k].again:
                found.add(k)
                todo += [maker for x in reads[k] for maker in graph.makers[x]]
        allowed.append(tuple(sorted(found)))
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
        return [*node.turn, *node.again]
    return list(node.again)


def _reads(node: Node) -> set[int]:
    return {x for choice in (*node.first, *node.again, *node.turn) for x in choice.run.reads}
