"""Mutants of the simulator, the compiled simulator and residency: which of them do the tests kill?

Protocol. Lines with code of these three subpackages are drawn by a fixed seed, one mutant per line: one
operator, comparison, constant or name of that line is changed. Each mutant replaces its file in a copy of the
tree, and the tests that state what is right for its subpackage run until one fails (`TESTS`; no golden rows).
Annotations and decorators are no lines with code: they say how code is kept, not what it computes.
A mutant that they all pass survives; one that takes longer than the limit counts as killed. Survivors that
can't change any result are named in `EQUIVALENT`, each with its reason.

    python benchmarks/mutants.py [--count 100] [--seed 1] [--only planner/replay] [-o mutants.csv]

Rows are appended as they come; the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NOTHING_SELECTED = 5
"""pytest's exit code if no test has the marker."""

LIMIT = 900
"""Seconds for the tests of one mutant."""

SELECTIONS = "not scripts", "scripts"
"""Markers of the tests that run first, and of the heavy ones that a mutant must survive too."""

TESTS = {
    "planner/simulator": (
        "tests/planner/test_simulator_pictures.py",
        "tests/planner/test_simulator_refusals.py",
        "tests/planner/test_timeline.py",
        "tests/planner/test_curves.py",
        "tests/planner/test_part.py",
        "tests/planner/test_simulator.py",
    ),
    "planner/replay": ("tests/planner/test_replay_runs.py", "tests/planner/test_replay.py"),
    "planner/residency": (
        "tests/planner/test_residency.py",
        "tests/planner/test_prefetch_placement.py",
        "tests/planner/test_from_schedule.py",
        "tests/planner/test_assembly.py",
    ),
}

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "planner/simulator/curves.py",
        "byte_curves",
        "return np.array(walk.rows, np.int64).reshape(-1, len(walk.ledgers)).T",
        "return np.array(walk.rows, np.int64).reshape(-2, len(walk.ledgers)).T",
    ): "numpy takes any negative length of a dimension for the unknown one, not only -1",
    (
        "planner/replay/walk.py",
        "_left_over",
        "continue",
        "break",
    ): "only the rest of a claimed delete can have no bytes left, and it is the last entry of its ledger",
    (
        "planner/replay/clock.py",
        "period",
        "growth, half = np.zeros(queues + 1), np.zeros(queues + 1)",
        "growth, half = (np.zeros(queues + 2), np.zeros(queues + 1))",
    ): "nothing reads the entry after those of the queues and the thread",
}
"""(file, function, line before, line after): why no result can change."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


class Mutant(NamedTuple):
    """A mutation of one line.

    line: number in the file, from 1.
    number: place among the mutations of that line.
    """

    file: str
    line: int
    number: int


class Mutation(ast.NodeTransformer):
    """Change the mutation site of this number in a line; `found` counts the sites that it has passed."""

    def __init__(self, line: int, number: int) -> None:
        self.line, self.number, self.found = line, number, 0

    def _is_it(self, node: ast.AST) -> bool:
        if getattr(node, "lineno", -1) != self.line:
            return False
        self.found += 1
        return self.found - 1 == self.number

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for at, operator in enumerate(node.ops):
            if type(operator) in SWAPS and self._is_it(node):
                node.ops[at] = SWAPS[type(operator)]()  # pyright: ignore
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) in SWAPS and self._is_it(node):
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) in SWAPS and self._is_it(node):
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_it(node):
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not | ast.USub) and self._is_it(node) else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return ast.copy_location(ast.Constant(not node.value), node) if self._is_it(node) else node
        if isinstance(node.value, int | float) and self._is_it(node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in NAMES and isinstance(node.ctx, ast.Load) and self._is_it(node):
            return ast.copy_location(ast.Name(NAMES[node.id], node.ctx), node)
        return node

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        return ast.copy_location(ast.Break(), node) if self._is_it(node) else node

    def visit_Break(self, node: ast.Break) -> ast.AST:
        return ast.copy_location(ast.Continue(), node) if self._is_it(node) else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # its annotation

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.args = self.visit(node.args)
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if self._is_it(node):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return node


class Sites(Mutation):
    """Count the mutation sites of every line, and change nothing."""

    def __init__(self, source: str) -> None:
        super().__init__(0, 0)
        self.counts = Counter[int]()
        self.visit(ast.parse(source))

    def _is_it(self, node: ast.AST) -> bool:
        self.counts[getattr(node, "lineno", 0)] += 1
        return False


def mutated(source: str, line: int, number: int) -> str:
    """Return the source with one mutation."""
    mutation = Mutation(line, number)
    tree = mutation.visit(ast.parse(source))
    assert mutation.found > number
    return ast.unparse(ast.fix_missing_locations(tree))


def function_at(source: str, line: int) -> str:
    """Return the name of the innermost function around a line; an empty string outside of all."""
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def every_mutant(root: Path, folder: str) -> Iterator[list[Mutant]]:
    """Yield, for each line of the folder's files that has mutation sites, its mutants."""
    for path in sorted((root / folder).rglob("*.py")):
        for line, sites in sorted(Sites(path.read_text()).counts.items()):
            yield [Mutant(str(path.relative_to(root)), line, number) for number in range(sites)]


def drawn(root: Path, count: int, seed: int) -> list[Mutant]:
    """Draw one mutant from each of `count` lines of all three folders."""
    lines = [mutants for folder in TESTS for mutants in every_mutant(root, folder)]
    random = Random(seed)
    return [random.choice(mutants) for mutants in random.sample(lines, min(count, len(lines)))]


def verdict(copy: Path, mutant: Mutant) -> tuple[str, str]:
    """Run the tests on a mutant. Returns its changed line, and 'killed by …', 'timeout' or 'survived'."""
    path = copy / mutant.file
    source = path.read_text()
    made = mutated(source, mutant.line, mutant.number)
    before, after = ast.unparse(ast.parse(source)).splitlines(), made.splitlines()
    changed = next((one.strip() for one, other in zip(after, before, strict=False) if one != other), "")
    folder = next(folder for folder in TESTS if mutant.file.startswith(folder))
    path.write_text(made)
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS[folder], "-m"]
    try:
        for selection in SELECTIONS:
            done = subprocess.run(
                [*command, selection],
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            if done.returncode not in (0, NOTHING_SELECTED):
                return changed, _killer(done)
    except subprocess.TimeoutExpired:
        return changed, "timeout"
    finally:
        path.write_text(source)
    return changed, "survived"


def _killer(done: subprocess.CompletedProcess[str]) -> str:
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"killed by {failed[0].split(' ')[1] if failed else f'exit code {done.returncode}'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants of files that begin with this")
    parser.add_argument("-o", "--output", type=Path, default=Path("mutants.csv"))
    options = parser.parse_args()
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        for name in filter(None, files.stdout.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
        mutants = [x for x in drawn(copy, options.count, options.seed) if x.file.startswith(options.only)]
        known = set[tuple[str, ...]]()
        if options.output.exists():
            with options.output.open() as rows:
                known = {tuple(row[:3]) for row in csv.reader(rows)}
        for mutant in mutants:
            if tuple(map(str, mutant)) in known:
                continue
            source = (copy / mutant.file).read_text()
            line, function = source.splitlines()[mutant.line - 1].strip(), function_at(source, mutant.line)
            changed, end = verdict(copy, mutant)
            if end == "survived" and (mutant.file, function, line, changed) in EQUIVALENT:
                end = "equivalent"
            with options.output.open("a") as rows:
                csv.writer(rows).writerow([*mutant, line, changed, end])
            print(f"{mutant.file}:{mutant.line}: {line}  ->  {changed}: {end}", flush=True)
    with options.output.open() as rows:
        ends = Counter(row[5].split(" ")[0] for row in csv.reader(rows))
    counted = ends.total() - ends["equivalent"]
    killed = ends["killed"] + ends["timeout"]
    print(f"{killed} of {counted} killed ({killed / max(1, counted):.0%}), {ends['equivalent']} equivalent")


if __name__ == "__main__":
    main()
