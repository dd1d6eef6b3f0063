"""Every solver on random problems: never over the budget, never below a bound, never an error of its own.

Protocol. Case s is `random_problem(s)` of tests/solver_cases.py: a graph of up to some 40 operations and a
budget. Each solver gets a short time limit; each answer is replayed by the simulator and by the tests' second
replay, each bound held against the schedules of all solvers, each refusal against the floor and the least
budget that it names. `-o FOLDER` keeps a line for each case and solver: the same command goes on where it
stood, and later solvers are held against earlier ones. A fault is printed and its graph written there.
A solver that does not come back ends the run with a traceback, and the case's number.

    python benchmarks/solver_fuzz.py [--cases N] [--first SEED] [--seconds S] [--solvers A,B] [-o FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import faulthandler
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from memplan.graphs.files import save_graph
from memplan.solvers import registry
from memplan.solvers.problem import Problem
from solver_cases import Verdict, contradictions, random_problem, verdict, warm_up

PATIENCE_SECONDS = 60.0
"""How long after its time limit a solver may go on before the run is ended."""


class Ledger:
    """The verdicts so far, by seed and solver, kept in cases.csv. Faulty ones are forgotten: tried again."""

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / "cases.csv" if folder else None
        self.seen: dict[int, dict[str, Verdict]] = defaultdict(dict)
        if self.path and self.path.exists():
            with self.path.open(newline="") as stream:
                for line in csv.reader(stream):
                    if len(line) == 8 and not line[7]:
                        self.seen[int(line[0])][line[1]] = _read(line)

    def add(self, seed: int, one: Verdict) -> None:
        self.seen[seed][one.solver] = one
        if self.path:
            figures = (one.time, one.peak, one.lower_bound, " | ".join(one.faults))
            with self.path.open("a", newline="") as stream:
                csv.writer(stream).writerow([seed, one.solver, one.outcome, one.seconds, *figures])


def _read(line: list[str]) -> Verdict:
    time_, peak, bound = (float(cell) if cell else None for cell in line[4:7])
    return Verdict(line[1], line[2], float(line[3]), time_, peak and int(peak), bound)


def examine(seed: int, solvers: list[str], limit: float, ledger: Ledger) -> list[str]:
    """The faults of the solvers that have not had this case."""
    left = [solver for solver in solvers if solver not in ledger.seen[seed]]
    if not left:
        return []
    problem, lines = random_problem(seed), list[str]()
    for solver in left:
        faulthandler.dump_traceback_later(3 * limit + PATIENCE_SECONDS, exit=True)
        where(seed, solver)
        one = verdict(solver, problem, limit)
        faulthandler.cancel_dump_traceback_later()
        ledger.add(seed, one)
        lines += [f"{solver}: {fault}" for fault in one.faults]
    return lines + list(contradictions(problem, ledger.seen[seed].values()))


def where(seed: int, solver: str) -> None:
    if sys.stderr.isatty():
        print(f"\rseed {seed}, {solver}          ", end="", file=sys.stderr)


def report(seed: int, problem: Problem, lines: list[str], folder: Path | None) -> None:
    place = ""
    if folder:
        place = f", {folder / f'seed-{seed}.json'}"
        save_graph(problem.graph, folder / f"seed-{seed}.json")
    print(f"seed {seed}: {problem.graph.name}, budget {problem.budget}{place}")
    for line in lines:
        print(f"    {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds for each solver and case")
    parser.add_argument("--solvers", default=",".join(entry.name for entry in registry.entries()))
    parser.add_argument("-o", "--output", type=Path, dest="folder")
    options = parser.parse_args()
    solvers: list[str] = options.solvers.split(",")
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    warm_up(solvers)
    ledger, faulty, start = Ledger(options.folder), 0, time.monotonic()
    seed = options.first
    for seed in range(options.first, options.first + options.cases):
        if time.monotonic() - start > options.seconds:
            break
        lines = examine(seed, solvers, options.time_limit, ledger)
        if lines:
            faulty += 1
            report(seed, random_problem(seed), lines, options.folder)
    print(f"{time.monotonic() - start:.0f} s, up to seed {seed}, {faulty} faulty cases")
    for solver in solvers:
        outcomes = Counter(seen[solver].outcome for seen in ledger.seen.values() if solver in seen)
        seconds = sum(seen[solver].seconds for seen in ledger.seen.values() if solver in seen)
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{solver}: {outcomes.total():,} cases in {seconds:,.0f} s: {counts}")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
