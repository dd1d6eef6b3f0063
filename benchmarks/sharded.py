"""Sharded training: FSDP2's policies, plans and bounds, over networks and budgets.

Protocol: a graph of `plan profile --estimate --gpu h100` with gradients, without updates; SGD's updates are
added (weights alone are persistent), the graph is sharded over 8 ranks, 30 µs a collective. A budget is what
is above the shares of the weights. Per cell:

    flat        the fastest of FSDP2's 2 × 3 policies that fits; a layer is one flat weight and one flat
                gradient
    by weight   the same policies, each weight gathered by itself (the solver `fsdp`)
    prefetch    those that keep weights, with gathers for the next iteration (the solver `fsdp-prefetch`)
    plan        the better of `joint` from its own starts and `joint` from these policies and `prefetch`, by a
                number of moves, so that a busy machine does not change it
    bound       the offloading bound, the larger of any order and of the traced order, `--bound-seconds` each

All times are the simulator's. One line of JSON a cell, written at once; cells that are in the file are
skipped.

    python benchmarks/sharded.py llama.json.gz --rates 350,45,20,11 --gib 2.8,5.4,7.8 -o rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.graphs.draft import Draft
from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Links, Machine, Peers
from memplan.graphs.transformations.sharding import sharded
from memplan.graphs.transformations.updates import SGD, gradients_by_name, with_updates
from memplan.planner.bounds import minimum_memory
from memplan.planner.schedule.schedule import Schedule, Verb
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.bounds.offload.offload_bound import offload_bound
from memplan.solvers.offloading.joint import joint
from memplan.solvers.offloading.sharded import fsdp_prefetch
from memplan.solvers.offloading.sharded.fsdp import policy_schedules
from memplan.solvers.problem import InfeasibleError, Options, Problem
from memplan.solvers.recomputation.checkpointing.layer_checkpoint import numbered

RANKS, LATENCY, UPDATE_RATE = 8, 30e-6, 150e9
MILLISECONDS = 1e3


def flat_units(graph: Graph) -> Graph:
    """Return the graph with one flat weight and one flat gradient for each layer, and for the rest."""
    pairs, tensors, draft = gradients_by_name(graph), graph.tensors, Draft(f"{graph.name}-flat")
    merged = {*pairs, *pairs.values()}
    sums: dict[tuple[str, int], int] = {}
    for x in merged:
        key = numbered(tensors.layer[x]), int(tensors.kind[x])
        sums[key] = sums.get(key, 0) + int(tensors.bytes[x])
    number: dict[int, int] = {}
    flat: dict[tuple[str, int], int] = {}
    for x in range(len(tensors)):
        key = numbered(tensors.layer[x]), int(tensors.kind[x])
        if x not in merged:
            number[x] = draft.tensor(*graph.tensor(x))
            continue
        if key not in flat:
            name = (key[0] or "root") + ("" if key[1] == Kind.PARAMETER else ".grad")
            flat[key] = draft.tensor(name, sums[key], Kind(key[1]), key[0] or None)
        number[x] = flat[key]

    def renumbered(row: tuple[int, ...]) -> list[int]:
        return list(dict.fromkeys(number[x] for x in row))

    for o in range(len(graph.operations)):
        one = graph.operation(o)
        edges = {name: renumbered(getattr(one, name)) for name in ("reads", "writes", "mutates")}
        draft.operation(**{**one._asdict(), **edges, "modes": ()})
    return draft.graph(list(dict.fromkeys(number[x] for x in graph.results)), graph.machine)


def prepared(graph: Graph, peers: Peers) -> Graph:
    updated = with_updates(graph, optimizer=SGD, when="in-backward", device_rate=UPDATE_RATE)
    return replace(sharded(updated, peers), machine=Machine(links=Links(peers=peers)))


def fastest_policy(problem: Problem) -> tuple[float, str] | None:
    found = [
        (simulate(problem.graph, schedule, budget=problem.budget).figures.time, str(policy))
        for policy, schedule, figures in policy_schedules(problem)
        if figures.least_budget <= problem.budget
    ]
    return min(found, default=None)


def gathered_ahead(problem: Problem) -> tuple[Schedule, float] | None:
    with suppress(InfeasibleError):
        found = fsdp_prefetch.solve(problem, Options(None, fsdp_prefetch.Settings())).schedule
        return found, simulate(problem.graph, found, budget=problem.budget).figures.time
    return None


def plans(problem: Problem, moves: int, ahead: tuple[Schedule, float] | None) -> Iterator[Schedule]:
    settings = joint.Settings(moves=moves)
    with suppress(InfeasibleError):
        yield joint.solve(problem, Options(None, settings)).schedule
    known = [
        (schedule, simulate(problem.graph, schedule, budget=problem.budget).figures.time)
        for _policy, schedule, figures in policy_schedules(problem)
        if figures.least_budget <= problem.budget
    ]
    if ahead is not None:
        known.append(ahead)
        yield ahead[0]
    if known:
        yield joint.improved(problem, Options(None, settings), known).schedule


def described(graph: Graph, schedule: Schedule) -> dict[str, Any]:
    """Figures of a plan: GiB gathered, weights gathered once, milliseconds recomputed."""
    gathered: dict[int, int] = {}
    runs: dict[int, int] = {}
    for verb, target, _where in schedule.rows():
        if verb == Verb.PREFETCH:
            gathered[target] = gathered.get(target, 0) + 1
        elif verb == Verb.COMPUTE:
            runs[target] = runs.get(target, 0) + 1
    sizes = graph.tensors.bytes
    return {
        "gathered_gib": sum(int(sizes[x]) * count for x, count in gathered.items()) / 2**30,
        "gathered_once": sum(count == 1 for count in gathered.values()),
        "gathered": len(gathered),
        "recompute_ms": MILLISECONDS * sum((n - 1) * graph.seconds(o) for o, n in runs.items()),
    }


def cell(path: Path, rate: float, gib: float, ranks: int, moves: int, bound_seconds: float) -> dict[str, Any]:
    peers, base = Peers(rate * 1e9, LATENCY, ranks=ranks), load_graph(path)
    graph, begun = prepared(base, peers), time.process_time()
    budget = int(gib * 2**30) + graph.share_bytes
    problem = Problem(graph, budget)
    flat = prepared(flat_units(base), peers)
    fixed = fastest_policy(Problem(flat, int(gib * 2**30) + flat.share_bytes))
    by_weight = fastest_policy(problem)
    ahead = gathered_ahead(problem)
    found = [
        (simulate(graph, each, budget=budget).figures.time, each) for each in plans(problem, moves, ahead)
    ]
    seconds, schedule = min(found, key=lambda each: each[0])
    bounds = [
        offload_bound(graph, Machine(links=Links(peers=peers)), budget, bound_seconds, order=order).seconds
        for order in ("any", "file")
    ]
    return {
        "graph": path.name,
        "rate": rate,
        "gib": gib,
        "minimum_gib": (minimum_memory(graph) - graph.share_bytes) / 2**30,
        "flat": fixed and (MILLISECONDS * fixed[0], fixed[1]),
        "by_weight": by_weight and (MILLISECONDS * by_weight[0], by_weight[1]),
        "prefetch": ahead and MILLISECONDS * ahead[1],
        "plan": MILLISECONDS * seconds,
        "any_order": MILLISECONDS * bounds[0],
        "traced_order": MILLISECONDS * bounds[1],
        "gap": 1 - max(bounds) / seconds,
        **described(graph, schedule),
        "processor_seconds": time.process_time() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rates", default="350,45,20", help="GB/s that a device receives")
    parser.add_argument("--gib", default="2.8,5.4,7.8", help="budgets above the shares of the weights")
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--moves", type=int, default=10, help="of joint, for each possible interval")
    parser.add_argument("--bound-seconds", type=float, default=30.0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    words = parser.parse_args()
    lines = words.output.read_text().splitlines() if words.output.exists() else []
    done = {(row["graph"], row["rate"], row["gib"]) for row in map(json.loads, lines)}
    for rate in map(float, words.rates.split(",")):
        for gib in map(float, words.gib.split(",")):
            if (words.graph.name, rate, gib) not in done:
                row = cell(words.graph, rate, gib, words.ranks, words.moves, words.bound_seconds)
                with words.output.open("a") as file:
                    print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
