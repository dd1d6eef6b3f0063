"""Collectives of a module's own code, on a queue of their own and on the compute queue.

Two parts:

    simulated   the graph that SimpleFSDP's parametrization would have of an estimated model: each weight is
                gathered by an operation before its first use, each gradient scattered by one. Per budget:
                `auto` for one queue; the same list of steps with two queues; `auto` for two queues.
    gloo        two ranks on this machine train a model of the tests by two plans, made with and without the
                queue, in turn: medians of rounds of ten iterations, and of their ratios.

    python benchmarks/collectives_overlap.py llama.json.gz --rate 45 --gib 5.4,7.8 --seconds 20
    python benchmarks/collectives_overlap.py --gloo simple_fsdp,llama,tensor
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import memplan
import torch
from memplan.devices.calls.collectives import overlapping
from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph, Kind, Phase
from memplan.graphs.machine import Peers
from memplan.graphs.transformations.one_queue import on_one_queue
from memplan.graphs.transformations.updates import SGD, gradients_by_name, with_updates
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import Problem
from memplan.solvers.registry.run import solve
from memplan.training.ranks import collectives
from torch import distributed as dist

RANKS, LATENCY, UPDATE_RATE = 8, 30e-6, 150e9
ROUNDS, ITERATIONS = 8, 10
MILLISECONDS = 1e3

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))


def simple_fsdp(graph: Graph, peers: Peers, pairs: Mapping[int, int]) -> Graph:
    """Return the graph with an operation for each gather of a weight and each scatter of its gradient.

    pairs: the gradient of each weight.
    """
    draft, tensors = Draft(f"{graph.name}-simplefsdp"), graph.tensors
    seconds = {x: float(peers.seconds(float(tensors.bytes[x]))) for x in (*pairs, *pairs.values())}
    number = dict[int, int]()
    for x in range(len(tensors)):
        one = graph.tensor(x)
        share = x in pairs or one.kind == Kind.OPTIMIZER_STATE
        number[x] = draft.tensor(
            one.name, peers.share_of(one.bytes) if share else one.bytes, one.kind, one.layer
        )
    whole, scattered = dict[int, int](), dict[int, int]()
    for w, dw in pairs.items():
        name, size, layer = tensors.name[w], int(tensors.bytes[w]), tensors.layer[w]
        whole[w] = draft.tensor(f"{name}.whole", size, Kind.ACTIVATION, layer)
        share = peers.share_of(size)
        scattered[dw] = draft.tensor(f"{name}.grad.share", share, Kind.PARAMETER_GRADIENT, layer)
    complete = {dw: max([*graph.producers[dw].tolist(), *graph.mutators[dw].tolist()]) for dw in scattered}
    gathered = set[int]()
    for o in range(len(graph.operations)):
        one = graph.operation(o)
        updates = one.phase == Phase.UPDATE
        for w in [] if updates else [x for x in one.reads if x in whole and x not in gathered]:
            gathered.add(w)
            name, reads, writes = f"{tensors.name[w]}/gather", [number[w]], [whole[w]]
            draft.operation(name, time=seconds[w], reads=reads, writes=writes, on_comm=True)
        of = scattered if updates else whole
        edges = {"writes": [number[x] for x in one.writes], "mutates": [number[x] for x in one.mutates]}
        reads = [of.get(x, number[x]) for x in one.reads]
        seconds_of_one = one.time / peers.ranks if updates else one.time
        draft.operation(**{**one._asdict(), **edges, "reads": reads, "time": seconds_of_one})
        for dw in [dw for dw, last in complete.items() if last == o]:
            name, reads, writes = f"{tensors.name[dw]}/scatter", [number[dw]], [scattered[dw]]
            draft.operation(
                name, time=seconds[dw], reads=reads, writes=writes, phase=Phase.BACKWARD, on_comm=True
            )
    return draft.graph([number[x] for x in graph.results if x not in scattered])


def simulated(path: Path, rate: float, budgets: list[float], seconds: float) -> None:
    base = load_graph(path)
    updated = with_updates(base, optimizer=SGD, when="in-backward", device_rate=UPDATE_RATE)
    graph = simple_fsdp(updated, Peers(rate * 1e9, LATENCY, ranks=RANKS), gradients_by_name(base))
    alone = on_one_queue(graph)
    print("| GiB above the shares | none, ms | its list, overlapped | plan | vs. none | bound |")
    print("|---|---|---|---|---|---|")
    for gib in budgets:
        budget = int(gib * 2**30) + graph.resident_bytes
        one = solve("auto", Problem(alone, budget), seconds, bound_seconds=0)
        same = simulate(graph, one.schedule, budget=budget).figures.time
        found = solve("auto", Problem(graph, budget), seconds, bound_seconds=5)
        times = [MILLISECONDS * each for each in (one.figures.time, same, found.figures.time)]
        saved = found.figures.time / one.figures.time - 1
        cells = [f"{gib:g}", *(f"{each:.1f}" for each in times), f"{saved:+.1%}"]
        print("|", " | ".join([*cells, f"{MILLISECONDS * (found.lower_bound or 0):.1f}"]), "|", flush=True)


def trained(rank: int, port: int, kind: str, answers: Any) -> None:
    """Time both plans on one of two ranks."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    from communicating_models import batch, make
    from sharded_training import adamw

    def nothing(_program: Any) -> frozenset[int]:
        return frozenset()

    steps, given = list[Any](), batch(kind, rank, 0)
    for chosen in (overlapping, nothing):
        setattr(collectives, "overlapping", chosen)  # noqa: B010  (no module exports it but its own)
        torch.manual_seed(0)
        module = make(kind)
        optimizer = adamw(module)
        options: dict[str, Any] = {"budget": "100%", "optimizer": optimizer, "cache": False, "time_limit": 6}
        steps.append(memplan.optimize(module, given, **options))
    rows = list[tuple[float, float, float, float]]()
    for number in range(ROUNDS + 1):
        row = [0.0] * 4
        for place in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            begun, computed = time.perf_counter(), time.process_time()
            for _ in range(ITERATIONS):
                steps[place](**given)
            dist.barrier()
            row[place] = (time.perf_counter() - begun) / ITERATIONS
            row[2 + place] = (time.process_time() - computed) / ITERATIONS
        if number:  # the first makes the code of both
            rows.append((row[0], row[1], row[2], row[3]))
    if rank == 0:
        answers.put(rows)
    dist.barrier()


def on_gloo(kinds: list[str]) -> None:
    print("| model of the tests | one queue, ms | two queues, ms | time | processor time |")
    print("|---|---|---|---|---|")
    from accelerate_on_cpus import free_port

    for kind in kinds:
        context, port = multiprocessing.get_context("spawn"), free_port()
        answers = context.SimpleQueue()
        ranks = [context.Process(target=trained, args=(rank, port, kind, answers)) for rank in range(2)]
        for each in ranks:
            each.start()
        rows: list[tuple[float, float, float, float]] = answers.get()
        for each in ranks:
            each.join()
        two, one = (MILLISECONDS * median(row[place] for row in rows) for place in (0, 1))
        saved, less = (median(row[k] / row[k + 1] for row in rows) - 1 for k in (0, 2))
        print(f"| {kind} | {one:.1f} | {two:.1f} | {saved:+.1%} | {less:+.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path, nargs="?")
    parser.add_argument("--rate", type=float, default=45.0, help="GB/s that a device receives")
    parser.add_argument("--gib", default="5.4,7.8", help="budgets above the shares of the weights")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of each search")
    parser.add_argument("--gloo", default="", help="models of tests/support/communicating_models.py")
    words = parser.parse_args()
    if words.graph is not None:
        simulated(words.graph, words.rate, [float(each) for each in words.gib.split(",")], words.seconds)
    if words.gloo:
        on_gloo(words.gloo.split(","))


if __name__ == "__main__":
    main()
