"""Odd graphs, machines and budgets that the formats allow: what strangers' traces look like, and worse.

A graph of one of the other generators, as a document, is twisted a few times: changes in place put in, sizes
and times made zero, tiny or huge, operations left out. A twist that gives no valid graph is taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random

from memplan.graphs.errors import InputError
from memplan.graphs.files.read import graph_from_document
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.graphs.transformations.updates import ADAMW, SGD, with_updates
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.solvers.problem import Problem
from odd_twists import PERSISTENT, SIZES, TIMES, TWISTS, Document
from small_graphs import small_graph
from small_offload import small_training
from strategies import random_graph, with_latencies
from training_graphs import training
from weights_only import weights_only

RATES = (None, 1.0, 3.0, 1e3, 1e9, 12e9, 2.0**62)


def odd_problem(random: Random) -> Problem:
    graph = odd_graph(random)
    machine = odd_machine(random) if random.random() < 0.6 else None
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    edge = random.choice((1, low - 1, low, low + 1, high - 1, high, 2 * high + 1, 2**62))
    budget = edge if random.random() < 0.35 else random.randint(min(low, high), max(low, high))
    if machine is not None:
        machine = _capacities(random, machine, graph)
    return Problem(graph, max(1, budget), machine)


def odd_machine(random: Random) -> Machine:
    """At most times with links that are in proportion."""
    if random.random() < 0.6:
        rate = random.choice((0.5, 2.0, 100.0, 1e9))
        links = Links(rate, random.choice((rate, 2 * rate)), *random.choice(((None, None), (rate, rate / 2))))
    else:
        links = Links(*(random.choice(RATES) for _link in range(4)))
    if random.random() < 0.3:
        links = with_latencies(random, links, (0.0, 2e-5, 0.5, 100.0))
    return Machine(links=links)


def _capacities(random: Random, machine: Machine, graph: Graph) -> Machine:
    """Of each memory none at most times, or about what the tensors take."""
    whole = int(graph.tensors.bytes.sum())

    def capacity(share: float) -> int | None:
        return (
            random.choice((0, 1, whole // 4, whole // 2, whole, whole + 1))
            if random.random() < share
            else None
        )

    return Machine(capacity(0.1), capacity(0.3), capacity(0.3), machine.links)


def odd_graph(random: Random) -> Graph:
    document = graph_to_document(_plain(random))
    for _twist in range(random.choice((0, 1, 1, 2, 3, 5, 8))):
        twisted = deepcopy(document)
        random.choice(TWISTS)(random, twisted)
        try:
            graph_from_document(twisted, "")
        except InputError:
            continue
        document = twisted
    return graph_from_document(document, "odd")


def _plain(random: Random) -> Graph:
    seed = random.randrange(10**9)
    layers = random.randint(1, 4)
    producers: tuple[Callable[[], Graph], ...] = (
        lambda: small_graph(random),
        lambda: random_graph(random, random.randint(1, 12)),
        lambda: random_graph(random, random.randint(1, 12)),
        lambda: chain(random.randint(1, 8), seed=seed, parameters=random.random() < 0.7),
        lambda: unet(random.randint(1, 2), seed=seed),
        lambda: layered(random.randint(1, 16), seed=seed, width=random.randint(1, 6)),
        lambda: training(layers, seed, skip=0.3, update=random.choice(("none", "end", "early"))),
        lambda: small_training(
            random,
            layers,
            updates=random.random() < 0.8,
            states=random.random() < 0.5,
            host=random.random() < 0.5,
            saved=random.random() < 0.5,
            frozen=random.choice((0.0, 0.5)),
            tied=random.random() < 0.3,
            moving=random.randint(0, 3 * layers),
        ),
        lambda: clipped(random, layers + 1, seed),
        lambda: weights_only(random, layers, frozen=random.choice((0.0, 0.5)), tied=random.random() < 0.3),
        lambda: graph_from_document(_shared_scale(random), "shared scale"),
        lambda: graph_from_document(_bare(random), "bare"),
    )
    return random.choice(producers)()


def clipped(random: Random, layers: int, seed: int) -> Graph:
    """A chain with updates that wait for the norm of all gradients, on the host too or not."""
    return with_updates(
        chain(layers, seed=seed, parameters=True),
        optimizer=random.choice((ADAMW, SGD)),
        when=random.choice(("in-backward", "after")),
        device_rate=1e6,
        host_rate=random.choice((None, 1e5)),
        clip_rate=1e7,
    )


def _bare(random: Random) -> Document:
    """Hardly anything: no operations, one, or some that share nothing."""
    tensors = [
        {"name": f"t{k}", "bytes": random.choice(SIZES), "kind": random.choice(("input", *PERSISTENT))}
        for k in range(random.randint(0, 3))
    ]
    operations: list[Document] = []
    for k in range(random.choice((0, 1, 1, 2, 4))):
        row: Document = {
            "name": f"F{k}",
            "phase": "forward",
            "time": random.choice(TIMES),
            "reads": [],
            "writes": [],
        }
        if tensors and random.random() < 0.5:
            row["reads"] = [random.choice(tensors)["name"]]
        if random.random() < 0.5:
            tensors.append({"name": f"a{k}", "bytes": random.choice(SIZES), "kind": "activation"})
            row["writes"] = [f"a{k}"]
        operations.append(row)
    return {
        "format": "plan-graph/1",
        "name": "bare",
        "tensors": tensors,
        "operations": operations,
        "results": [],
    }


def _shared_scale(random: Random) -> Document:
    """Layers that share one weight, which several updates change in turn while later operations read it."""
    layers, size = random.randint(1, 4), random.choice((0, 2, 8))
    tensors: list[Document] = [
        {"name": "x0", "bytes": 1, "kind": "input"},
        {"name": "scale", "bytes": size, "kind": random.choice(PERSISTENT)},
        {"name": "w", "bytes": 6, "kind": "parameter"},
    ]
    operations: list[Document] = []

    def run(name: str, phase: str, reads: list[str], writes: list[str], mutates: list[str]) -> None:
        row: Document = {
            "name": name,
            "phase": phase,
            "time": random.choice((0, 1, 2.5)),
            "reads": reads,
            "writes": writes,
        }
        if mutates:
            row["mutates"] = mutates
        if mutates or random.random() < 0.4:
            row["recompute"] = False
        operations.append(row)

    for k in range(layers):
        tensors.append({"name": f"x{k + 1}", "bytes": random.randint(0, 4), "kind": "activation"})
        run(
            f"F{k}",
            "forward",
            [f"x{k}", *random.choice((["scale"], ["scale", "w"], ["w"]))],
            [f"x{k + 1}"],
            [],
        )
        if random.random() < 0.3:
            run(f"S{k}", "forward", [f"x{k + 1}"], [], ["scale"])
    above = f"x{layers}"
    for k in reversed(range(layers)):
        tensors.append({"name": f"g{k}", "bytes": random.randint(0, 3), "kind": "gradient"})
        tensors.append({"name": f"dw{k}", "bytes": size, "kind": "parameter_gradient"})
        run(
            f"B{k}",
            "backward",
            [above, f"x{k}", *random.choice(([], ["scale"], ["w"]))],
            [f"g{k}", f"dw{k}"],
            [],
        )
        if random.random() < 0.8:
            run(
                f"U{k}",
                "update",
                [f"dw{k}"],
                [],
                random.choice((["scale"], ["scale"], ["scale", "w"], ["w"])),
            )
        above = f"g{k}"
    if random.random() < 0.5:
        run("last", "update", ["scale"], [], [])
    return {
        "format": "plan-graph/1",
        "name": "shared-scale",
        "tensors": tensors,
        "operations": operations,
        "results": [],
    }


# Twists: each changes a document
