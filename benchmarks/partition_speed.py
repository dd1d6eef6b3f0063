"""How fast graphs are cut into clusters.

Protocol: each case in a process of its own, one thread; a small graph first, so that nothing is compiled when
the clock runs. Seconds of processor time, once: `partition` (M^t = 30, M^l = 20), then the identities of all
clusters. Memory: the largest resident size of the process, the graph and what made it included.
`layered`: a random DAG, no loss. `skips`: each operation reads the one before and any other: nothing
dominates. `transformer`: the training of layers with two residuals, dropout and one mask for all.
`u-net`: the training of nested levels, each of two convolutions down and two up, with a skip between.
Usage: python benchmarks/partition_speed.py [operations …]     (default 1000 10000 100000 1000000)
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random

from memplan.graphs.draft import Draft
from memplan.graphs.generators import layered
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.partition.partition import partition


class Model:
    """Forward operations as they are run, then the loss and the backward part."""

    def __init__(self, name: str) -> None:
        self.draft = Draft(name)
        self.tape: list[tuple[str, list[int], int]] = []

    def run(self, name: str, reads: list[int], size: int, *, draws: bool = False) -> int:
        made = self.draft.tensor(name, size)
        self.draft.operation(
            name, time=1.0, reads=reads, writes=[made], random=draws, layer=name.split("/")[0]
        )
        self.tape.append((name, reads, made))
        return made

    def trained(self, last: int) -> Graph:
        draft = self.draft
        loss = draft.tensor("loss", 4)
        gradient = {last: draft.tensor("g.last", draft.size_of(last), Kind.GRADIENT)}
        draft.operation("loss", time=1.0, reads=[last], writes=[loss, gradient[last]], phase=Phase.LOSS)
        made = {output for _name, _reads, output in self.tape}
        for name, reads, output in reversed(self.tape):
            if output not in gradient:
                continue
            writes: list[int] = []
            for x in reads:
                if x in made and x not in gradient:
                    gradient[x] = draft.tensor(f"g.{x}", draft.size_of(x), Kind.GRADIENT)
                writes += [gradient[x]] if x in made else []
            draft.operation(
                f"B.{name}", time=2.0, reads=[gradient[output], *reads], writes=writes, phase=Phase.BACKWARD
            )
        return draft.graph([loss])


def transformer(operations: int) -> Graph:
    model = Model("transformer")
    batch = model.draft.tensor("batch", 8, Kind.INPUT)
    mask = model.run("mask/ones", [batch], 50)
    x = model.run("embedding/0", [batch], 100)
    for layer in range(operations // 36):
        q, k, v = (model.run(f"{layer}/{part}", [x], 100) for part in ("q", "k", "v"))
        y = model.run(f"{layer}/scores", [q, k, mask], 400)
        y = model.run(f"{layer}/softmax", [y], 400)
        y = model.run(f"{layer}/values", [y, v], 100)
        for half in ("attention", "mlp"):
            for step in range(4):
                y = model.run(f"{layer}/{half}.{step}", [y], 100 if half == "attention" else 400)
            y = model.run(f"{layer}/{half}.drop", [y], 100, draws=True)
            x = y = model.run(f"{layer}/{half}.add", [x, y], 100)
    return model.trained(x)


def u_net(operations: int) -> Graph:
    model = Model("u-net")
    x = model.draft.tensor("batch", 1000, Kind.INPUT)
    levels = operations // 20
    skips: list[int] = []
    for level in range(levels):
        size = 1000 * (levels - level)
        for step in range(4):
            x = model.run(f"down.{level}/{step}", [x], size)
        skips.append(x)
    for level in reversed(range(levels)):
        size = 1000 * (levels - level)
        x = model.run(f"up.{level}/merge", sorted({x, skips[level]}), 2 * size)
        for step in range(5):
            x = model.run(f"up.{level}/{step}", [x], size)
    return model.trained(x)


def skips(operations: int) -> Graph:
    random, draft = Random(0), Draft("skips")
    for i in range(operations):
        reads = sorted({i - 1, random.randrange(i)}) if i else []
        made = draft.tensor(f"t{i}", random.randint(1, 100))
        draft.operation(f"n{i}", time=1.0, reads=reads, writes=[made])
    return draft.graph()


KINDS: dict[str, Callable[[int], Graph]] = {
    "layered": layered,
    "skips": skips,
    "transformer": transformer,
    "u-net": u_net,
}


def measure(kind: str, operations: int) -> str:
    """A row of the table."""
    assert partition(KINDS[kind](500)).root.identity
    graph = KINDS[kind](operations)
    start = time.process_time()
    found = partition(graph)
    seconds = time.process_time() - start
    start = time.process_time()
    distinct = len(set(found.identities.kind[len(found.forward) :].tolist()))
    more = time.process_time() - start
    clusters = len(found.first) - len(found.forward)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    sizes = f"{len(graph.operations):,} | {seconds:.2f} | {more:.2f} | {gigabytes:.2f}"
    return f"| {kind} | {sizes} | {clusters:,} | {distinct:,} | {len(found.root.children)} | {found.levels} |"


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in KINDS:
        print(measure(sys.argv[1], int(sys.argv[2])))
        return
    print("| graph | operations | partition s | identities s | GB | clusters | distinct | top | levels |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for size in [int(word) for word in sys.argv[1:]] or [1_000, 10_000, 100_000, 1_000_000]:
        for kind in KINDS:
            subprocess.run([sys.executable, __file__, kind, str(size)], check=True)


if __name__ == "__main__":
    main()
