"""Sharded training with optimizer states, or all shares, on the host: the smallest budgets, and times below
what all on the device takes.

Protocol: a graph with gradients, without updates; AdamW's are added, with states in float32, at the rates of
`benchmarks/sharded.py`; it is sharded over `--ranks`. Budgets are of all that lies on a device. The smallest
budget is found by bisection, to 2 %, with `joint` and a number of moves, without host and with links of the
rates of PCIe 5.0 x16 (50 GB/s each way, 20 µs), 128 GiB of host memory for each rank; and with gathers and
scatters as operations, so that shares of weights may be on the host, whose CPU updates `--host-rate` bytes of
weights per second for all ranks of the node. `--gib`: times at these budgets.

    python benchmarks/sharded_offload.py llama.json.gz --rate 350 --gib 6,8,10 -o rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.graphs.files.files import load_graph
from memplan.graphs.graph import Graph
from memplan.graphs.machine import Link, Links, Machine, Peers
from memplan.graphs.transformations.gathering import with_gathers
from memplan.graphs.transformations.sharding import rank_bytes, sharded
from memplan.graphs.transformations.updates import ADAMW, with_updates
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Problem
from memplan.solvers.registry.run import solve

LATENCY, UPDATE_RATE, HOST = 30e-6, 150e9, 128 * 2**30
PCIE = Link(50e9, 20e-6)
TOLERANCE = 0.02


def planned(graph: Graph, budget: int, machine: Machine, moves: int) -> dict[str, Any] | None:
    """Return the figures of joint's plan; None if it finds none."""
    try:
        found = solve(
            "joint", Problem(graph, budget, machine), None, {"moves": str(moves)}, bound_seconds=0
        ).schedule
    except InfeasibleError:
        return None
    figures = simulate(graph, found, budget=budget, machine=machine).figures
    return {"ms": 1e3 * figures.time, "peak": figures.peak, "host": figures.host_peak}


def smallest(graph: Graph, machine: Machine) -> int:
    """Return the smallest budget with a plan, by bisection between the minimum memory and twice as much."""
    low, high = minimum_memory(graph, machine), 2 * minimum_memory(graph, machine)
    while planned(graph, high, machine, 0) is None:
        low, high = high, 2 * high
    while high > low * (1 + TOLERANCE):
        middle = (low + high) // 2
        if planned(graph, middle, machine, 0) is None:
            low = middle
        else:
            high = middle
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rate", type=float, default=350, help="GB/s that a device receives")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gib", default="", help="budgets in GiB")
    parser.add_argument("--state-scale", type=float, default=2.0, help="bytes of a state for one of a weight")
    parser.add_argument("--host-rate", type=float, default=2.8e9, help="bytes/s of weights, on the CPU")
    parser.add_argument("--moves", type=int, default=10, help="of joint, for each possible interval")
    parser.add_argument("-o", "--output", type=Path, required=True)
    words = parser.parse_args()
    peers = Peers(words.rate * 1e9, LATENCY, ranks=words.ranks)
    updated = with_updates(
        load_graph(words.graph),
        optimizer=ADAMW,
        when="in-backward",
        device_rate=UPDATE_RATE,
        state_scale=words.state_scale,
        host_rate=words.host_rate / words.ranks,
    )
    alone = Machine(links=Links(peers=peers))
    hosted = Machine(host_capacity=HOST, links=Links(PCIE, PCIE, peers=peers))
    graph, gathering = replace(sharded(updated, peers), machine=alone), with_gathers(updated, peers)
    rows: list[dict[str, Any]] = [{"shares": rank_bytes(graph)}]
    own = replace(hosted, links=Links(PCIE, PCIE))
    ways = ("device", graph, alone), ("host", graph, hosted), ("shares on the host", gathering, own)
    for name, graph, machine in ways:
        begun = time.process_time()
        rows.append(
            {"where": name, "minimum": minimum_memory(graph, machine), "smallest": smallest(graph, machine)}
        )
        for gib in map(float, filter(None, words.gib.split(","))):
            found = planned(graph, int(gib * 2**30), machine, words.moves)
            rows.append({"where": name, "gib": gib, **(found or {"ms": None})})
        rows[-1]["processor_seconds"] = time.process_time() - begun
    words.output.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main()
