"""Averages of gradients in DistributedDataParallel: on the compute queue, and on a queue of their own.

Two parts:

    simulated   a graph without updates gets a ring's averages and AdamW's updates, right after their
                gradients. *one queue*: an average per gradient, each on the compute queue, its update
                directly after it. *overlapped*: as plans have them (memplan/updates/averages.py), in buckets,
                on the queue comm, updates after the next average. By `auto`, within shares of one peak.
    gloo        two ranks on this machine train layers of one width by two plans, with and without the queue,
                and by eager PyTorch, in turn: medians of rounds of eight iterations, and of their ratios.

    python benchmarks/averages_overlap.py memplan/instances/public/models/gpt2-12-a100.json.gz --seconds 20
    python benchmarks/averages_overlap.py --gloo
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import memplan
import torch
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.graphs.transformations.updates import ADAMW, gradients_by_name
from memplan.planner.baseline import baseline
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.updates.averages import BUCKET_BYTES, Average
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LATENCY, UPDATE_RATE, TURN_BYTES = 10e-6, 300e9, 512
RANKS, RATES, SHARES = (2, 8), (12, 100), (1.0, 0.6)
LAYERS, WIDTH, ROUNDS, ITERATIONS = 16, 512, 11, 8
MILLISECONDS = 1e3

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


def ring_seconds(size: int, ranks: int, rate: float) -> float:
    """Return the seconds of a ring's all-reduce of so many bytes. rate: bytes per second."""
    return 2 * (ranks - 1) * (LATENCY + size / (ranks * rate))


def data_parallel(graph: Graph, ranks: int, rate: float, bucket: int, *, late: bool) -> Graph:
    """Return the graph with averages of its gradients and updates by them.

    bucket: bytes from which on gradients are averaged. late: updates follow the next average.
    """
    pairs, tensors, draft = gradients_by_name(graph), graph.tensors, Draft(f"{graph.name}-ddp")
    sizes: list[int] = tensors.bytes.tolist()
    for x in range(len(tensors)):
        one = graph.tensor(x)
        draft.tensor(*(one._replace(kind=Kind.GRADIENT) if x in pairs.values() else one))
    states = {
        w: [draft.tensor(f"{tensors.name[w]}.{s}", sizes[w], Kind.OPTIMIZER_STATE) for s in ADAMW.states]
        for w in pairs
    }
    buckets = _buckets(list(reversed(pairs)), [sizes[pairs[w]] for w in reversed(pairs)], bucket)
    made = {g: max([*graph.producers[g].tolist(), *graph.mutators[g].tolist()]) for g in pairs.values()}
    later = dict[int, list[tuple[int, list[int]]]]()
    place = 0
    for number, names in enumerate(buckets):
        place = max(place, *(made[pairs[w]] for w in names))
        later.setdefault(place, []).append((number, names))
    waiting, turn = list[tuple[int, list[int]]](), list[int]()

    def update(average: int, weights: list[int]) -> None:
        for w in weights:
            name, seconds = f"{tensors.name[w]}/update", sizes[w] / UPDATE_RATE
            mutates = [w, *states[w]]
            draft.operation(name, time=seconds, reads=[average], mutates=mutates, phase=Phase.UPDATE)

    for o in range(len(graph.operations)):
        draft.operation(**graph.operation(o)._asdict())
        for number, names in later.get(o, ()):
            size = sum(sizes[pairs[w]] for w in names)
            average = draft.tensor(f"average{number}", size, Kind.PARAMETER_GRADIENT)
            after = draft.tensor(f"turn{number}", TURN_BYTES, Kind.GRADIENT)
            draft.operation(
                f"average{number}",
                time=ring_seconds(size, ranks, rate),
                reads=[*(pairs[w] for w in names), *turn],
                writes=[average, after],
                phase=Phase.BACKWARD,
                recompute=False,
                on_comm=True,
            )
            turn = [after]
            waiting.append((average, names))
            while len(waiting) > late:
                update(*waiting.pop(0))
    for average, names in waiting:
        update(average, names)
    return draft.graph([x for x in graph.results if x not in pairs.values()], graph.machine)


def _buckets(weights: Sequence[int], sizes: Sequence[int], enough: int) -> list[list[int]]:
    found, left = list[list[int]](), 0
    for w, size in zip(weights, sizes, strict=True):
        if left <= 0:
            found.append([])
            left = enough
        found[-1].append(w)
        left -= size
    return found


def simulated(path: Path, seconds: float) -> None:
    graph = load_graph(path)
    print("| ranks | GB/s | budget | one queue, ms | overlapped, ms | bound |")
    print("|---|---|---|---|---|---|")
    for ranks in RANKS:
        for rate in RATES:
            alone = on_one_queue(data_parallel(graph, ranks, rate * 1e9, 0, late=False))
            overlapped = data_parallel(graph, ranks, rate * 1e9, BUCKET_BYTES, late=True)
            for share in SHARES:
                budget = int(share * baseline(alone).peak)
                one = solve("auto", Problem(alone, budget), seconds, bound_seconds=0)
                two = solve("auto", Problem(overlapped, budget), 2 * seconds, bound_seconds=2)
                bound = two.lower_bound or 0.0
                cells = [MILLISECONDS * each for each in (one.figures.time, two.figures.time, bound)]
                row = [str(ranks), str(rate), f"{share:.0%}", *(f"{each:.1f}" for each in cells)]
                print("|", " | ".join(row), "|", flush=True)


def trained(rank: int, port: int, answers: Any) -> None:
    """Time both plans and eager PyTorch on one of two ranks."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    x, steps = torch.randn(64, WIDTH), list[Any]()
    for overlaps in (True, False, None):
        torch.manual_seed(0)
        module = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
        optimizer = torch.optim.SGD(module.parameters(), 0.01)

        def eager(x: Any, module: Any = module, optimizer: Any = optimizer) -> None:
            module(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        if overlaps is None:
            steps.append(eager)
            continue
        Average.overlaps = overlaps
        options: dict[str, Any] = {"budget": "100%", "solver": "store-all", "cache": False, "verify": False}
        steps.append(
            memplan.optimize(
                module, x, loss_fn=lambda y: y.square().mean(), optimizer=optimizer, progress=False, **options
            )
        )
    rows = list[list[float]]()
    for number in range(ROUNDS + 1):
        row = [0.0] * len(steps)
        for place in range(len(steps)) if number % 2 else reversed(range(len(steps))):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(ITERATIONS):
                steps[place](x)
            dist.barrier()
            row[place] = (time.perf_counter() - begun) / ITERATIONS
        if number:  # the first makes the code of both
            rows.append(row)
    if rank == 0:
        answers.put(rows)
    dist.barrier()


def on_gloo() -> None:
    from accelerate_on_cpus import free_port

    context, port = multiprocessing.get_context("spawn"), free_port()
    answers = context.SimpleQueue()
    ranks = [context.Process(target=trained, args=(rank, port, answers)) for rank in range(2)]
    for each in ranks:
        each.start()
    rows: list[list[float]] = answers.get()
    for each in ranks:
        each.join()
    overlapped, alone, eager = (MILLISECONDS * median(row[place] for row in rows) for place in range(3))
    ratios = [median(row[0] / row[place] for row in rows) for place in (1, 2)]
    print("| overlapped, ms | one queue | eager PyTorch | vs. one queue | vs. eager |")
    print("|---|---|---|---|---|")
    print(f"| {overlapped:.1f} | {alone:.1f} | {eager:.1f} | {ratios[0] - 1:+.1%} | {ratios[1] - 1:+.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of a search with one queue")
    parser.add_argument("--gloo", action="store_true", help="train on two ranks")
    words = parser.parse_args()
    if words.graph is not None:
        simulated(words.graph, words.seconds)
    if words.gloo:
        on_gloo()


if __name__ == "__main__":
    main()
