"""`plan bench` killed by SIGKILL at random moments and started again, until its table is whole.

Protocol. Small graphs by seed (chains, random layers, U-Nets), solvers that are deterministic and need no
limit, three budgets, no bounds but the time of all operations. One run undisturbed; then the same command on
a new table, killed after a random time again and again. What must hold: after each kill the table has all the
rows that it had before, as they were; at the end it has each row once, and all columns but the times that
solvers took are those of the undisturbed run. Exit code 1 where that fails.

    python benchmarks/bench_kills.py [--instances 30] [--within 6] [--seed 0] [--workers 2]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from time import perf_counter

from memplan.comparison.file import read_rows
from memplan.comparison.summary import best_bounds
from memplan.comparison.trials import Key, Row
from memplan.graphs.files.files import save_graph
from memplan.graphs.generators import chain, layered, unet

PLAN = [sys.executable, "-c", "from memplan.cli.main import main; main()", "bench"]
SOLVERS = "store-all,chen-sqrt,revolve,rotor,tw-remat"
BUDGETS = "80%,60%,40%"


def write_graphs(folder: Path, count: int, chance: Random) -> None:
    for number in range(count):
        seed = chance.randrange(1000)
        kinds = (
            chain(chance.randint(4, 10), seed=seed),
            layered(chance.randint(8, 20), seed=seed),
            unet(2 + number % 3, seed=seed),
        )
        save_graph(kinds[number % len(kinds)], folder / f"{number}.json")


def untimed(rows: dict[Key, Row]) -> dict[Key, Row]:
    """Without what differs from run to run. A refusal has the bound that another row at its place has told
    before, which of two that run at once is a matter of time: here each has the largest."""
    bounds = best_bounds(rows.values())
    return {
        key: replace(row, seconds=0.0, history=(), lower_bound=bounds[row.place].lower)
        for key, row in rows.items()
    }


def killed_run(command: list[str], table: Path, within: float, chance: Random) -> tuple[int, int]:
    """Kills, and rows that were lost or changed by one of them."""
    kills = lost = 0
    before: dict[Key, Row] = {}
    while True:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            _out, said = process.communicate(timeout=chance.uniform(0.2, within))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            after = read_rows(table)
            lost += sum(after.get(key) != row for key, row in before.items())
            before = after
            continue
        if process.returncode:
            sys.exit(f"exit code {process.returncode}: {said.decode()}")
        return kills, lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--instances", type=int, default=30)
    parser.add_argument("--within", type=float, default=6.0, help="seconds until a kill, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    chance = Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="bench-kills-") as name:
        folder = Path(name)
        graphs = folder / "graphs"
        graphs.mkdir()
        write_graphs(graphs, asked.instances, chance)
        words = [str(graphs), "--solvers", SOLVERS, "--budgets", BUDGETS, "--workers", str(asked.workers)]
        tables = folder / "calm.csv", folder / "killed.csv"
        commands = [[*PLAN, *words, "--bound-time", "0", "-o", str(table)] for table in tables]
        start = perf_counter()
        subprocess.run(commands[0], check=True, capture_output=True)
        calm = perf_counter() - start
        kills, lost = killed_run(commands[1], tables[1], asked.within, chance)
        whole = perf_counter() - start - calm
        rows = [untimed(read_rows(table)) for table in tables]
        lines = len(tables[1].read_text().splitlines()) - 1
    differing = [key for key in rows[0].keys() | rows[1].keys() if rows[0].get(key) != rows[1].get(key)]
    for key in differing:
        print(f"undisturbed: {rows[0].get(key)}\nkilled:      {rows[1].get(key)}")
    print(f"{asked.instances} graphs, {len(rows[0])} rows in {calm:.0f} s undisturbed")
    twice = lines - len(rows[1])
    print(f"{kills} kills in {whole:.0f} s: {lost} rows lost, {twice} there twice, {len(differing)} differ")
    return 1 if lost or differing or twice else 0


if __name__ == "__main__":
    sys.exit(main())
