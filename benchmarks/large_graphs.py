"""What the default makes of graphs with very many operations: seconds, gap and memory of the whole command.

Protocol. `plan solve` as a process, reading the file included; compiled code is at hand (a small graph
first). Graphs: `chain`: all costs different, no weights; `uniform`: a chain of equal blocks; `transformer`,
`u-net`: those of partition_speed.py; `layered`: a random DAG. above: the answer's seconds above the bound for
any order; GB: the largest resident size of the process.

    python benchmarks/large_graphs.py [OPERATIONS …] [--kinds chain,u-net] [--budgets 75,50] [-- --gap 1%]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from time import time

from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered
from memplan.graphs.graph import Graph
from partition_speed import transformer, u_net

PLAN = [sys.executable, "-c", "from memplan.cli import main; main.main()", "solve"]
NEAR = 0.05


def blocks(operations: int, *, uniform: bool) -> Graph:
    return chain(operations // 2, uniform=uniform, parameters=False, fast_forward=False)


KINDS: dict[str, Callable[[int], Graph]] = {
    "chain": partial(blocks, uniform=False),
    "uniform": partial(blocks, uniform=True),
    "transformer": transformer,
    "u-net": u_net,
    "layered": layered,
}


def measure(path: Path, percent: str, more: list[str]) -> str:
    """Of a row the cells behind its names. Seconds begin with the process, those of the log with solving."""
    log, said, schedule = (path.with_suffix(suffix) for suffix in (".csv", ".out", ".schedule.json"))
    files = "--log", str(log), "-o", str(schedule)
    command = [*PLAN, str(path), "--budget", f"{percent}%", "--json", *files, *more]
    with said.open("w") as output:
        begin = time()
        child = subprocess.Popen(command, stdout=output)
        _pid, _status, used = os.wait4(child.pid, 0)
        whole = time() - begin
    document = json.loads(said.read_text())
    seconds, gigabytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
    spent = f"{whole:.0f} | {seconds:.0f} | {gigabytes:.2f}"
    if "time" not in document:
        return f"none | | | {spent} |"
    bound = document["lower_bound"]
    found = [
        (float(row["seconds"]), float(row["best"]))
        for row in csv.DictReader(log.read_text().splitlines())
        if row["best"]
    ]
    near = next((elapsed for elapsed, best in found if best <= (1 + NEAR) * bound), inf)
    near_text = "never" if near == inf else f"{near:.0f}"
    return f"{found[0][0]:.0f} | {near_text} | {document['time'] / bound - 1:.2%} | {spent} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("operations", nargs="*", type=int, default=[10_000, 100_000])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--budgets", default="75,50", metavar="PERCENT,…")
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options, more = parser.parse_args(arguments[:cut]), arguments[cut + 1 :]
    print("| graph | operations | budget | first s | within 5 % s | above | whole s | processor s | GB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.json"
        save_graph(chain(200), small)
        measure(small, "60", [])
        for operations in options.operations:
            for kind in options.kinds.split(","):
                graph, path = KINDS[kind](operations), Path(folder) / f"{kind}.json.gz"
                save_graph(graph, path)
                for percent in options.budgets.split(","):
                    row = f"| {kind} | {len(graph.operations):,} | {percent} %"
                    print(f"{row} | {measure(path, percent, more)}", flush=True)


if __name__ == "__main__":
    main()
