"""Odd graphs, machines and budgets that the formats allow: what strangers' traces look like, and worse.

A graph of one of the other generators, as a document, is twisted a few times: changes in place put in, sizes
and times made zero, tiny or huge, operations left out. A twist that gives no valid graph is taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

from memplan.graphs.errors import InputError
from memplan.graphs.files.read import graph_from_document
from memplan.graphs.files.write import graph_to_document
from memplan.graphs.generators import chain, layered, unet
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Links, Machine
from memplan.planner.bounds import memory_floor
from memplan.planner.plain import baseline
from memplan.solvers.problem import Problem
from small_graphs import small_graph
from small_offload import small_training
from strategies import random_graph
from training_graphs import training
from weights_only import weights_only

Document = dict[str, Any]

SIZES = (0, 0, 1, 3, 1000, 2**20, 2**40)
TIMES = (0.0, 0.0, 5e-324, 1e-9, 0.1, 1.0, 1e6, 1e16)
RATES = (None, 1.0, 3.0, 1e3, 1e9, 12e9, 2.0**62)
PERSISTENT = ("parameter", "buffer", "optimizer_state")
NAMES = (
    " ",
    "\n",
    "é\n\n  ",
    "[red]x[/red]",
    "\x1b[31m",
    "%s{0}",
    "on",
    "1e3",
    "../x",
    "a" * 300,
    "\u202e",
    "🦆",
)


def odd_problem(random: Random) -> Problem:
    graph = odd_graph(random)
    machine = odd_machine(random) if random.random() < 0.6 else None
    low, high = memory_floor(graph, machine), baseline(graph).peak
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
    makers: tuple[Callable[[], Graph], ...] = (
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
        lambda: weights_only(random, layers, frozen=random.choice((0.0, 0.5)), tied=random.random() < 0.3),
        lambda: graph_from_document(_shared_scale(random), "shared scale"),
        lambda: graph_from_document(_bare(random), "bare"),
    )
    return random.choice(makers)()


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


def _sizes(random: Random, document: Document) -> None:
    share = random.choice((0.2, 1.0))
    for row in document["tensors"]:
        if random.random() < share:
            row["bytes"] = random.choice(SIZES)


def _no_bytes(_random: Random, document: Document) -> None:
    for row in document["tensors"]:
        row["bytes"] = 0


def _times(random: Random, document: Document) -> None:
    share, times = random.choice((0.2, 1.0)), random.choice((TIMES, (0.0,), TIMES[:4]))
    for row in document["operations"]:
        if random.random() < share:
            row["time"] = random.choice(times)


def _workspaces(random: Random, document: Document) -> None:
    for row in document["operations"]:
        row["workspace"] = random.choice(SIZES)


def _change_in_place(random: Random, document: Document) -> None:
    """Of a tensor that is there by then, of any kind, by an operation of its own."""
    place = random.randint(0, len(document["operations"]))
    names = _names(document)
    if names:
        random.shuffle(names)
        row: Document = {
            "name": _fresh(document, "change"),
            "phase": random.choice(("forward", "backward", "update")),
            "time": random.choice((0, 1)),
            "reads": names[2 : random.choice((2, 3))],
            "writes": [],
            "mutates": names[: random.choice((1, 1, 2))],
            "recompute": random.random() < 0.5,
        }
        document["operations"].insert(place, row)


def _also_changes(random: Random, document: Document) -> None:
    row, names = _operation(random, document), _names(document)
    if row and names:
        changed = random.choice(names)
        if changed not in row["writes"]:
            row["mutates"] = [*dict.fromkeys([*row.get("mutates", []), changed])]
            row["recompute"] = False


def _also_reads(random: Random, document: Document) -> None:
    row, names = _operation(random, document), _names(document)
    if row and names:
        row["reads"] = [*dict.fromkeys([*row["reads"], random.choice(names)])]


def _also_writes(random: Random, document: Document) -> None:
    """A contribution to what others write."""
    row, names = _operation(random, document), _names(document)
    if row and names:
        row["writes"] = [*dict.fromkeys([*row["writes"], random.choice(names)])]


def _reader_at_the_end(random: Random, document: Document) -> None:
    names = _names(document)
    row = {"name": _fresh(document, "last"), "phase": "update", "time": 1, "reads": names[:1], "writes": []}
    if names:
        row["reads"] = [random.choice(names)]
    document["operations"].append(row)


def _left_out(random: Random, document: Document) -> None:
    for _operation_left_out in range(random.choice((1, 1, 3))):
        if document["operations"]:
            document["operations"].pop(random.randrange(len(document["operations"])))


def _mode(random: Random, document: Document) -> None:
    row = _operation(random, document)
    if row:
        inputs = [x for x in row["reads"] if x not in row.get("mutates", [])]
        ways: tuple[Document, ...] = (
            {"on": "host", "time": random.choice((0, 2))},
            {"reads_host": inputs[:1], "time": 2},
            {"writes": row["writes"][:1], "time": 0.5},
            {"workspace": 7},
            {"time": random.choice(TIMES)},
        )
        row.setdefault("modes", {})[f"m{random.randrange(3)}"] = random.choice(ways)


def _flags(random: Random, document: Document) -> None:
    flag, value = random.choice((("recompute", False), ("random", True))), random.random()
    for row in document["operations"]:
        if random.random() < value:
            row[flag[0]] = flag[1]


def _kinds(random: Random, document: Document) -> None:
    for row in document["tensors"]:
        if random.random() < 0.2:
            made = row["kind"] in ("activation", "gradient", "parameter_gradient")
            row["kind"] = random.choice(
                ("activation", "gradient", "parameter_gradient") if made else ("input", *PERSISTENT)
            )


def _phases(random: Random, document: Document) -> None:
    for row in document["operations"]:
        if random.random() < 0.3 and row["phase"] != "loss":
            row["phase"] = random.choice(("forward", "backward", "update"))


def _results(random: Random, document: Document) -> None:
    names = _names(document)
    document["results"] = random.sample(names, min(len(names), random.choice((0, 1, 2, 50))))


def _bystanders(random: Random, document: Document) -> None:
    """Tensors that nothing touches."""
    for kind in random.sample(("input", *PERSISTENT, "activation"), 2):
        document["tensors"].append(
            {"name": _fresh(document, "idle"), "bytes": random.choice(SIZES), "kind": kind}
        )


def _odd_names(random: Random, document: Document) -> None:
    """One tensor or operation is called something odd, wherever it is named."""
    new = random.choice(NAMES)
    if random.random() < 0.5:
        document["name"] = new
        return
    names = _names(document)
    if not names or new in names:
        return
    old = random.choice(names)

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if isinstance(value, dict):
            return {key: renamed(item) for key, item in value.items()}
        return new if value == old else value

    document.update(renamed({part: document[part] for part in ("tensors", "operations", "results")}))


def _names(document: Document) -> list[str]:
    return [row["name"] for row in document["tensors"]]


def _operation(random: Random, document: Document) -> Document | None:
    return random.choice(document["operations"]) if document["operations"] else None


def _fresh(document: Document, name: str) -> str:
    taken = {row["name"] for part in ("tensors", "operations") for row in document[part]}
    return next(_unused(name, taken))


def _unused(name: str, taken: set[str]) -> Iterator[str]:
    for number in range(len(taken) + 1):
        if f"{name}{number}" not in taken:
            yield f"{name}{number}"


TWISTS: tuple[Callable[[Random, Document], None], ...] = (
    _sizes,
    _no_bytes,
    _times,
    _workspaces,
    _change_in_place,
    _change_in_place,
    _also_changes,
    _also_changes,
    _also_reads,
    _also_reads,
    _also_writes,
    _reader_at_the_end,
    _left_out,
    _mode,
    _mode,
    _flags,
    _kinds,
    _phases,
    _results,
    _bystanders,
    _odd_names,
)
