"""Stages of an H-graph, in which its nodes may run: stage t ends with the first run of node t.

Any node before it that may be recomputed may run there, once and in order, as long as something later may use
what it makes. The loss, what follows it and what can't be repeated run in their own stage alone. If clusters
are combined, only what node t needs, directly or not, may run: half of the columns. That loses the schedules
that run a node early to be rid of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....graphs.closure import closure
from .graph import HGraph, Node, NodeRun

Slot = tuple[int, int]


@dataclass(frozen=True)
class Stages:
    """Stages of an H-graph.

    allowed: per stage, its nodes in order.
    last: per node, its last stage.
    """

    allowed: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]


def stages_of(graph: HGraph) -> Stages:
    useful = _last_stages(graph)
    allowed = [tuple(k for k in range(stage + 1) if useful[k] >= stage) for stage in range(len(useful))]
    if any(node.pair is not None for node in graph.nodes):
        needed = [_needed(graph, stage) for stage in range(len(useful))]
        allowed = [tuple(k for k in row if k in wanted) for row, wanted in zip(allowed, needed, strict=True)]
    last = list(range(len(useful)))
    for stage, nodes in enumerate(allowed):
        for k in nodes:
            last[k] = stage
    return Stages(tuple(allowed), tuple(last))


def _last_stages(graph: HGraph) -> list[int]:
    """Return per node the last stage in which it may run, and something may use what it makes."""
    last = list(range(len(graph.nodes)))
    until = [len(last) - 1 if lasts else -1 for lasts in graph.lasts]
    for k, node in reversed(list(enumerate(graph.nodes))):
        if node.recompute:
            uses = [until[x] for choice in node.recompute for x in choice.run.writes]
            turn = [graph.backward_of[node.pair]] if node.pair is not None else []
            # A forward pass with options may always run once more in the stage of its backward.
            useful = max([k, *uses, *turn])
            last[k] = useful if node.until is None else min(useful, node.until)
        for x in _reads(node):
            until[x] = max(until[x], last[k])
    return last


def _needed(graph: HGraph, stage: int) -> set[int]:
    """Return the node, and what it needs, directly or not, that the stage before has not just made."""
    node = graph.nodes[stage]
    pair = [k for k in range(graph.loss) if node.pair is not None and graph.nodes[k].pair == node.pair]

    def producers(k: int) -> Iterator[int]:
        return (m for x in _reads(graph.nodes[k]) for m in graph.producers[x] if m < stage)

    # In forward the stage before has just run its node: what that made is there.
    first = [k for k in (*producers(stage), *pair) if stage > graph.loss or k < stage - 1]
    return {stage, *closure(first, lambda k: producers(k) if graph.nodes[k].recompute else ())}


def choices_at(graph: HGraph, slot: Slot) -> list[NodeRun]:
    """Return the choices of a slot's node in its stage."""
    stage, k = slot
    node = graph.nodes[k]
    if stage == k:
        return list(node.first)
    if node.pair is not None and graph.backward_of[node.pair] == stage:
        return [*node.turn, *node.recompute]
    return list(node.recompute)


def _reads(node: Node) -> set[int]:
    return {x for choice in (*node.first, *node.recompute, *node.turn) for x in choice.run.reads}
