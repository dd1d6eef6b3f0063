"""Mutants: which of them do the tests kill?

Protocol. Lines with code are drawn by a fixed seed, one mutant per line: one operator, comparison, constant
or name of that line is changed. Each mutant replaces its file in a copy of the tree, and the tests of
`make test` that reach its line run, fastest first, until one fails. A mutant that they all pass survives; one
that takes five times their processor time counts as killed. Survivors that can't change any result are named
in mutation/equivalent.py, each with its reason.

    python benchmarks/mutants.py record [--jobs 2]           which test runs which line; once per state
    python benchmarks/mutants.py run [--count 200] [--seed 1] [--only runtime,training] [--every] [--jobs 2]
    python benchmarks/mutants.py run --near                  without records: the test files near each mutant
    python benchmarks/mutants.py table                       by package; the tests that alone kill a mutant

Records and outcomes are kept in build/mutants, under a name of the sources and tests; each command goes on
where it was ended. With --every all tests of a mutant run, so that `table` can say what each kills alone.
With --near a mutant meets the test files nearest to its source by imports, for 40 seconds of processor time
at most: more survive than with all tests that reach them.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutation.draw import PACKAGES, Mutant, drawn
from mutation.near import near
from mutation.reach import SELECTION, Reach, record, state, within
from mutation.recorder import ROOT
from mutation.trial import SECONDS, Outcome, Tree

FOLDER = ROOT / "build" / "mutants"

LIMITED = ("-p", "mutation.limit", "--timeout=200")
"""Options of pytest for near tests: a run ends after NEAR_SECONDS, a test fails after 200 s by the clock."""


def known(file: Path) -> list[list[str]]:
    """Return the rows of a table of outcomes."""
    if not file.exists():
        return []
    with file.open() as rows:
        return list(csv.reader(rows))


def run(folder: Path, options: argparse.Namespace) -> None:
    """Run the mutants of a draw that have no outcome yet."""
    tests_of, table = finder(folder, options), outcomes(folder, options)
    done = {tuple(row[:3]) for row in known(table)}
    packages = options.only.split(",") if options.only else [*PACKAGES]
    waiting = [
        m for m in drawn(ROOT, packages, options.count, options.seed) if tuple(map(str, m)) not in done
    ]
    arguments = ["-m", SELECTION, "-x", *LIMITED] if options.near else [] if options.every else ["-x"]
    trees = SimpleQueue[Tree]()
    for _ in range(options.jobs):
        trees.put(Tree())

    def outcome(mutant: Mutant) -> Outcome:
        tree = trees.get()
        try:
            return tree.outcome(mutant, tests_of(mutant), arguments)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(outcome, waiting):
            with table.open("a") as rows:
                csv.writer(rows).writerow([*found.mutant, *found[1:5], "\n".join(found.failed)])
            place = f"{found.mutant.file}:{found.mutant.line}"
            print(f"{place}: {found.before}  ->  {found.after}: {found.end}", flush=True)


def finder(folder: Path, options: argparse.Namespace) -> Callable[[Mutant], list[list[str]]]:
    """Return the function that gives the tests of a mutant, by runs."""
    if options.near:
        return lambda mutant: near(mutant.file)
    reach = Reach(folder)

    def reaching(mutant: Mutant) -> list[list[str]]:
        tests = within(reach.tests(mutant.file, mutant.line), reach.seconds, SECONDS)
        return [tests] if tests else []

    return reaching


def outcomes(folder: Path, options: argparse.Namespace) -> Path:
    """Return the table of outcomes: with all tests, up to the first that fails, or of tests that are near."""
    return folder / ("near.csv" if options.near else "every.csv" if options.every else "first.csv")


def table(folder: Path) -> None:
    """Print how many mutants of each package are killed, and what each test kills alone."""
    names = ("near.csv", "first.csv", "every.csv")  # a later one says more of a mutant
    rows = {tuple(row[:3]): row for name in names for row in known(folder / name)}
    ends = defaultdict[str, Counter[str]](Counter)
    for row in rows.values():
        ends[row[0].partition("/")[0]][row[5]] += 1
        ends["all"][row[5]] += 1
    print("| package | mutants | killed (timeouts) | equivalent | survived | unreached |")
    print("|---|---|---|---|---|---|")
    for package, of in sorted(ends.items(), key=lambda item: (item[0] == "all", item[0])):
        counted, killed = of.total() - of["equivalent"], of["killed"] + of["timeout"]
        share = f"{killed} of {counted} ({killed / max(1, counted):.0%})"
        timeouts = f" ({of['timeout']})" if of["timeout"] else ""
        cells = (package, of.total(), share + timeouts, of["equivalent"], of["survived"], of["unreached"])
        print(f"| {' | '.join(map(str, cells))} |")
    alone = Counter(row[7] for row in known(folder / "every.csv") if row[7] and "\n" not in row[7])
    for test, count in alone.most_common():
        print(f"{count}\t{test}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("record", "run", "table"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="packages, with commas between them")
    parser.add_argument("--every", action="store_true", help="run all tests of a mutant, whatever fails")
    parser.add_argument(
        "--near", action="store_true", help="run the test files near a mutant, without records"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    folder = FOLDER / state()
    folder.mkdir(parents=True, exist_ok=True)
    if options.command == "record":
        record(folder, options.jobs)
    elif options.command == "run":
        run(folder, options)
    else:
        table(folder)


if __name__ == "__main__":
    main()
