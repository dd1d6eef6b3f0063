"""Small training graphs whose tensors may move: chains of layers with weights, gradients and updates.

    F_i: x_{i-1}, w_i → x_i [, a_i]     B_i: g_i, w_i, x_{i-1} [, a_i] → g_{i-1}, dw_i
    U_i: dw_i → w_i [, s_i]

Whole seconds and bytes, links of a few bytes a second: small enough for exact_offload.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind, Mode, Phase
from memplan.graphs.machine import Links, Machine
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from strategies import with_latencies


@dataclass(frozen=True)
class Case:
    """A problem of offloading. name: says how it was made."""

    name: str
    graph: Graph
    machine: Machine
    budget: int


def small_training(
    random: Random,
    layers: int,
    *,
    updates: bool = True,
    states: bool = False,
    host: bool = False,
    saved: bool = False,
    frozen: float = 0.0,
    tied: bool = False,
    moving: int = 6,
    blocks: int = 1,
) -> Graph:
    """moving: how many weights, activations and their gradients have bytes, the rest none. updates: as soon
    as the gradient is there; else gradients are results. states: an optimizer state a weight. host: updates
    have that mode. saved: F makes a tensor for B. frozen: the share of weights that nothing changes. tied:
    the last layer reads the first one's weight. blocks: updates of each weight, one after another."""
    draft = Draft(f"small-{layers}")
    with_bytes = set(random.sample(range(3 * layers), min(moving, 3 * layers)))

    def size(number: int, most: int) -> int:
        return random.randint(1, most) if number in with_bytes else 0

    x = [draft.tensor("x0", 1, Kind.INPUT)]
    weights = [draft.tensor(f"w{i}", size(i, 6), Kind.PARAMETER) for i in range(layers)]
    if tied:
        weights[-1] = weights[0]
    kept: list[list[int]] = []
    for i in range(layers):
        x.append(draft.tensor(f"x{i + 1}", size(layers + i, 4)))
        kept.append([draft.tensor(f"a{i + 1}", random.randint(0, 3))] if saved else [])
        draft.operation(
            f"F{i + 1}", time=random.randint(0, 4), reads=[x[i], weights[i]], writes=[x[i + 1], *kept[i]]
        )
    loss = draft.tensor("loss", 0)
    gradient = draft.tensor(f"g{layers}", size(3 * layers - 1, 2), Kind.GRADIENT)
    draft.operation("loss", time=0, reads=[x[-1]], writes=[loss, gradient], phase=Phase.LOSS, recompute=False)
    results, made = [loss], dict[int, int]()
    for i in reversed(range(layers)):
        weight = weights[i]
        below = [draft.tensor(f"g{i}", size(2 * layers + i - 1, 2), Kind.GRADIENT)] if i else []
        learns = weight in made or random.random() >= frozen
        if learns and weight not in made:
            made[weight] = draft.tensor(f"dw{i + 1}", draft.size_of(weight), Kind.PARAMETER_GRADIENT)
        writes = [*below, *([made[weight]] if learns else [])]
        if writes:
            draft.operation(
                f"B{i + 1}",
                time=random.randint(1, 6),
                workspace=random.choice((0, 0, 1)),
                reads=[gradient, weight, x[i], *kept[i]],
                writes=writes,
                phase=Phase.BACKWARD,
            )
        gradient = below[0] if below else gradient
        if learns and weight not in weights[:i]:
            if updates:
                for number in range(blocks):
                    _update(draft, random, weight, made[weight], states, host, number)
            else:
                results.append(made[weight])
    return draft.graph(results)


def _update(
    draft: Draft, random: Random, weight: int, gradient: int, states: bool, host: bool, number: int
) -> None:
    size, name = draft.size_of(weight), f"{weight}" if not number else f"{weight}[{number}]"
    state = [draft.tensor(f"s{name}", size, Kind.OPTIMIZER_STATE)] if states else []
    modes = [Mode("host", random.randint(1, 6), 0, (), on_host=True)] if host and size else []
    draft.operation(
        f"U{name}",
        time=random.randint(0, 1),
        reads=[gradient],
        mutates=[weight, *state],
        phase=Phase.UPDATE,
        recompute=False,
        modes=modes,
    )


def direct_case(seed: int) -> Case:
    """`small_case` where backward operations have modes that make outputs with bytes in host memory. Where
    updates have modes on the host (kinds 2 and 3): two layers, of which all weights have bytes."""
    case, random = small_case(seed), Random(seed)
    graph = small_training(random, 2, host=True) if seed % 6 in (2, 3) else case.graph
    sizes, modes = graph.tensors.bytes, dict(graph.operations.modes)
    for o in range(len(graph.operations)):
        operation = graph.operation(o)
        made = [x for x in operation.writes if sizes[x]]
        if operation.phase == Phase.BACKWARD and made and random.random() < 0.7:
            below = tuple(random.sample(made, random.randint(1, len(made))))
            seconds = operation.time + random.choice((0, 1, 1, 4))
            modes[o] = (
                Mode("direct", seconds, operation.workspace, operation.writes, writes_host=below),
                *operation.modes,
            )
    graph = replace(graph, operations=replace(graph.operations, modes=modes))
    low, high = minimum_memory(graph, case.machine), baseline(graph).peak
    budget = low + round((high - low) * random.choice((0.0, 0.1, 0.3, 0.6)))
    return Case(f"{seed}:direct", graph, case.machine, budget)


def small_case(seed: int) -> Case:
    """By its number: what the graph has, how fast the links are, how tight the budget is."""
    random = Random(seed)
    kind = seed % 6
    layers = random.choice(((2, 3, 4, 5, 6), (2, 3, 4), (2, 3), (2,), (2, 3, 4), (2, 3, 4, 5))[kind])
    graph = small_training(
        random,
        layers,
        updates=kind != 4,
        states=kind == 3,
        host=kind in (2, 3),
        saved=kind == 1,
        frozen=0.5 if kind == 5 else 0.0,
        tied=kind == 5 and layers > 2,
        moving=(5, 3, 3, 2, 5, 5)[kind],
    )
    machine = Machine(links=Links(d2h=random.choice((0.5, 1, 2, 3)), h2d=random.choice((0.5, 1, 2, 3))))
    if random.random() < 0.4:
        machine = Machine(links=with_latencies(random, machine.links, (0.0, 0.5, 1.0, 2.0)))
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    budget = low + round((high - low) * random.choice((0.0, 0.15, 0.3, 0.5, 0.7)))
    return Case(f"{seed}:{graph.name}", graph, machine, budget)
