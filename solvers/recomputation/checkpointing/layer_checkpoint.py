"""A checkpoint around each layer, as `torch.utils.checkpoint` makes them: the way that most people go.

Nothing is chosen. A layer keeps what comes in from outside; the rest is dropped behind its forward pass, and
the whole layer runs forward again when its backward pass begins. A layer is a module with a number in its
name, the outermost such: `transformer.h.3` of `transformer.h.3.mlp.act`. So are lists of modules numbered,
and `Sequential`. What has no number is kept, and a layer that is used several times is one. What touches a
tensor that is changed in place later is not repeated. Tensors are deleted behind their last use, which
autograd does a little later.

One replay, linear in the edges.

Reference: torch.utils.checkpoint, `use_reentrant=False`, which stops a layer's second run where nobody needs
more of it; `gradient_checkpointing_enable` of Hugging Face's models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ....graphs.graph import Graph, Phase
from ....planner.bounds import time_bound
from ....planner.schedule.schedule import PLAIN
from ....planner.schedule.sequence import Run
from ...candidates import device_limit, infeasible, require_backward, sequenced
from ...problem import Answer, NotAcceptedError, Options, Problem, Status

NAME = "layer-checkpoint"


@dataclass(frozen=True)
class Settings:
    """None."""


def solve(problem: Problem, options: Options) -> Answer:
    del options
    graph = problem.graph
    require_backward(NAME, graph)
    found = sequenced(graph, list(runs(graph)))
    if found.peak > device_limit(problem):
        raise infeasible(NAME, problem, found.peak)
    return Answer(found.schedule, Status.HEURISTIC, time_bound(graph))


def runs(graph: Graph) -> Iterator[Run]:
    """The file's order, each layer's forward pass again before the first of its backward operations.

    Raises NotAcceptedError where no layer has a number.
    """
    operations = graph.operations
    layers = [numbered(path) for path in operations.layer]
    if not any(layers):
        raise NotAcceptedError(f"{NAME} takes graphs of models with numbered layers; {graph.name} has none")
    again = defaultdict[str, list[int]](list)
    for operation, layer in enumerate(layers):
        if operations.phase[operation] == Phase.BACKWARD:
            for repeated in again.pop(layer, ()):
                yield repeated, PLAIN
        yield operation, PLAIN
        changed = set(graph.mutate_lists[operation])
        if changed:
            for forwards in again.values():
                forwards[:] = [o for o in forwards if changed.isdisjoint(_touched(graph, o))]
        elif layer and operations.recompute[operation] and operations.phase[operation] == Phase.FORWARD:
            again[layer].append(operation)


def _touched(graph: Graph, operation: int) -> list[int]:
    return [*graph.read_lists[operation], *graph.operations.writes[operation].tolist()]


def numbered(path: str | None) -> str:
    """The outermost module with a number; empty where there is none: 'h.3' of 'h.3.mlp.0'."""
    parts = (path or "").split(".")
    first = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return "" if first is None else ".".join(parts[: first + 1])
