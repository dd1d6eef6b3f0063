"""Training graphs of one update a layer, and sequences of them drawn at random."""

from __future__ import annotations

from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.schedule.sequence import Run, prune

LINKED = Machine(links=Links(d2h=3.0, h2d=5.0, disk_read=2.0, disk_write=1.5))
HOST_MODE = 1


def training(layers: int, *, frozen: int = 0, result: bool = False) -> Graph:
    """F_1 … F_L, B_L, U_L … B_1, U_1: weights, gradients, states; layer `frozen` is never updated.

    result: the gradient of layer 1 is left as a result, without an update.
    """
    draft = Draft("training")
    x = [draft.tensor("x0", 2, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", 4 + i, Kind.PARAMETER) for i in range(1, layers + 1)]
    for i, weight in enumerate(weights, 1):
        x.append(draft.tensor(f"x{i}", 3))
        draft.operation(f"F{i}", time=1, reads=[x[-2], weight], writes=[x[-1]])
    g, results = x[-1], list[int]()
    for i in range(layers, 0, -1):
        weight = weights[i - 1]
        gradient = draft.tensor(f"d{i}", 4 + i, Kind.PARAMETER_GRADIENT)
        below = draft.tensor(f"g{i}", 3, Kind.GRADIENT)
        trained = i != frozen
        draft.operation(
            f"B{i}",
            time=2,
            reads=list(dict.fromkeys([g, x[i - 1], weight])),
            writes=[below, gradient] if trained else [below],
            phase=Phase.BACKWARD,
        )
        g = below
        if not trained:
            continue
        if result and i == 1:
            results.append(gradient)
            continue
        state = draft.tensor(f"s{i}", 8, Kind.OPTIMIZER_STATE)
        draft.operation(
            f"U{i}",
            time=0.5,
            reads=[gradient],
            mutates=[weight, state],
            phase=Phase.UPDATE,
            modes=(Mode("host", 3.0, 0, (), on_host=True),),
        )
    return draft.graph(results)


def random_runs(graph: Graph, random: Random) -> list[Run]:
    """The file's order, some updates on the host, some forward operations again before the backward."""
    runs: list[Run] = []
    forward = [o for o, phase in enumerate(graph.operations.phase) if phase == Phase.FORWARD]
    for operation in range(len(graph.operations)):
        if operation == len(forward):
            runs += [(o, 0) for o in forward[:-1] if random.random() < 0.5]
        on_host = operation in graph.operations.modes and random.random() < 0.5
        runs.append((operation, HOST_MODE if on_host else 0))
    return prune(graph, runs)
