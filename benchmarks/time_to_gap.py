"""Seconds from a command to its first schedule, to one within 1 % of the bound, and to its end.

Protocol. `plan solve --log`, whole command as a process, models of model_graphs.py at 75, 60, 50 and 40 % of
the plain peak, one after the other; compiled code is at hand, or with --empty an empty cache for each. All
seconds begin with the process: Python and imports are in them. The bound is the run's last, which holds for
every schedule.

    python benchmarks/model_graphs.py FOLDER
    python benchmarks/time_to_gap.py FOLDER [MODEL …] [--budgets 75,50] [--empty] [-- --set moves=500]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from math import inf
from pathlib import Path
from statistics import median
from time import time
from typing import NamedTuple

SAY = (
    "import sys, time; from memplan.cli import main, solve; print(time.time(), file=sys.stderr); main.main()"
)
PLAN = [sys.executable, "-c", SAY]
NEAR = 0.01


class Run(NamedTuple):
    """Seconds of the whole command; gap: at the end. ∞: not reached. who: found the first."""

    first: float
    near: float
    whole: float
    gap: float
    who: str


def run(graph: Path, percent: str, more: list[str], empty: bool) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        command = [*PLAN, "solve", str(graph), "--budget", f"{percent}%", "--json", "--log", str(log), *more]
        cache = {"XDG_CACHE_HOME": folder} if empty else {}
        begin = time()
        said = subprocess.run(command, env={**os.environ, **cache}, capture_output=True, check=False)
        whole = time() - begin
        rows = list(csv.DictReader(log.read_text().splitlines()))
    document = json.loads(said.stdout)
    if "time" not in document:
        return Run(inf, inf, whole, inf, "")
    extra = float(said.stderr.split()[0]) - begin
    bound = document["lower_bound"]
    found = [(extra + float(row["seconds"]), float(row["best"]), row["who"]) for row in rows if row["best"]]
    near = (seconds for seconds, best, _who in found if (best - bound) / best <= NEAR)
    return Run(found[0][0], next(near, inf), whole, document["gap"], found[0][2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--budgets", default="75,60,50,40", metavar="PERCENT,…")
    parser.add_argument("--empty", action="store_true", help="nothing compiled is at hand")
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:cut])
    graphs = [options.folder / f"{name}.json" for name in options.models]
    runs: list[Run] = []
    print("| model | budget | first (by) | within 1 % | whole | gap at the end |\n|---|---|---|---|---|---|")
    for graph in graphs or sorted(options.folder.glob("*.json")):
        for percent in options.budgets.split(","):
            one = run(graph, percent, arguments[cut + 1 :], options.empty)
            if one.first == inf:
                print(f"| {graph.stem} | {percent} % | none | | {one.whole:.1f} | |", flush=True)
                continue
            runs.append(one)
            near = "never" if one.near == inf else f"{one.near:.1f}"
            cells = f"{one.first:.1f} ({one.who}) | {near} | {one.whole:.1f} | {one.gap:.2%}"
            print(f"| {graph.stem} | {percent} % | {cells} |", flush=True)
    print(
        f"\nMedians of {len(runs)}: first {median(one.first for one in runs):.1f}, "
        f"within 1 % {median(one.near for one in runs):.1f}, whole {median(one.whole for one in runs):.1f} s"
    )


if __name__ == "__main__":
    main()
