"""A checkpoint around each layer, as `torch.utils.checkpoint` makes them: the most common method.

Nothing is chosen. A layer keeps what comes in from outside; the rest is dropped after its forward pass, and
the whole layer is recomputed when its backward pass begins. A layer is a module with a number in its name,
the outermost such: `transformer.h.3` of `transformer.h.3.mlp.act`. Lists of modules are numbered so, and
`Sequential`. What has no number is kept, and a layer that is used several times is one. What touches a tensor
that is changed in place later is not repeated. Tensors are deleted after their last use, which autograd does
a little later.

One replay, linear in the edges.

Reference: torch.utils.checkpoint, `use_reentrant=False`, which stops a layer's second run once nothing more
of it is needed; `gradient_checkpointing_enable` of Hugging Face's models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ....graphs.graph import Graph, Phase
from ....planner.bounds import time_bound
from ....planner.schedule.schedule import DEFAULT_MODE
from ....planner.schedule.sequence import Run
from ...candidates import candidate_of_runs, device_limit, infeasible, require_backward
from ...problem import NotAcceptedError, Options, Problem, SolverResult, Status

NAME = "layer-checkpoint"


@dataclass(frozen=True)
class Settings:
    """Settings of layer-checkpoint: none."""


def solve(problem: Problem, options: Options) -> SolverResult:
    del options
    graph = problem.graph
    require_backward(NAME, graph)
    found = candidate_of_runs(graph, list(runs(graph)))
    if found.peak > device_limit(problem):
        raise infeasible(NAME, problem, found.peak)
    return SolverResult(found.schedule, Status.HEURISTIC, time_bound(graph))


def runs(graph: Graph) -> Iterator[Run]:
    """Yield the traced order, with each layer's forward pass repeated before its first backward operation.

    Raises NotAcceptedError if no layer has a number.
    """
    operations = graph.operations
    layers = [numbered(path) for path in operations.layer]
    if not any(layers):
        raise NotAcceptedError(f"{NAME} takes graphs of models with numbered layers; {graph.name} has none")
    recomputed = defaultdict[str, list[int]](list)
    for operation, layer in enumerate(layers):
        if operations.phase[operation] == Phase.BACKWARD:
            # Popped: a layer is recomputed once, at its first backward operation.
            for repeated in recomputed.pop(layer, ()):
                yield repeated, DEFAULT_MODE
        yield operation, DEFAULT_MODE
        changed = set(graph.mutate_lists[operation])
        if changed:
            for forwards in recomputed.values():
                # Repeated after the change they would read the new version, or undo it.
                forwards[:] = [o for o in forwards if changed.isdisjoint(_touched(graph, o))]
        elif layer and operations.recompute[operation] and operations.phase[operation] == Phase.FORWARD:
            recomputed[layer].append(operation)


def _touched(graph: Graph, operation: int) -> list[int]:
    return [*graph.read_lists[operation], *graph.operations.writes[operation].tolist()]


def numbered(path: str | None) -> str:
    """Return the outermost module with a number, empty if there is none: 'h.3' of 'h.3.mlp.0'."""
    parts = (path or "").split(".")
    first = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return "" if first is None else ".".join(parts[: first + 1])
