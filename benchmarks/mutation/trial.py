"""One mutant: the tests that reach its line, run in a copy of the tree in which the line is changed."""

from __future__ import annotations

import ast
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from .draw import Mutant
from .equivalent import EQUIVALENT
from .mutations import function_at, mutated
from .recorder import ROOT

SECONDS = 30.0
"""Recorded seconds that the tests of one mutant take together."""

NEAR_SECONDS = 20.0
"""Seconds of processor time of a run of near test files, with what they import."""

LIMIT = 150
"""Seconds of processor time after which a mutant counts as killed: five times what the tests took."""

PATIENCE = 4 * LIMIT
"""Seconds by the clock, for mutants that wait and use no processor; four, as others may use the machine."""

MEMORY = 8 << 30
"""Bytes of address space. A mutant that allocates without end must not take the machine's memory."""


class Outcome(NamedTuple):
    """The result of a mutant's tests.

    end: killed, timeout, survived, equivalent, or unreached if no test is known to run its file.
    failed: the tests that failed.
    tests: how many ran at most; of near ones, how many files.
    """

    mutant: Mutant
    before: str
    after: str
    end: str
    tests: int
    failed: tuple[str, ...]


class Tree:
    """A copy of the files that git knows, in which mutants run one after the other."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self.path = Path(self._folder.name) / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.path / name, follow_symlinks=False)

    def outcome(
        self, mutant: Mutant, runs: Sequence[Sequence[str]], options: Sequence[str] = ("-x",)
    ) -> Outcome:
        """Run the tests on a mutant until a run has one that fails.

        runs: names of tests, or files of them; a run is a process.
        options: pytest's.
        """
        path = self.path / mutant.file
        source = path.read_text()
        made = mutated(source, mutant.line, mutant.number)
        before = source.splitlines()[mutant.line - 1].strip()
        after = _changed(source, made)
        if not runs:
            return Outcome(mutant, before, after, "unreached", 0, ())
        path.write_text(made)
        end, failed, count = "survived", tuple[str, ...](), 0
        try:
            for tests in runs:
                count += len(tests)
                end, failed = self._end(tests, options)
                if end != "survived":
                    break
        finally:
            path.write_text(source)
        if end == "survived" and (mutant.file, function_at(source, mutant.line), before, after) in EQUIVALENT:
            end = "equivalent"
        return Outcome(mutant, before, after, end, count, failed)

    def _end(self, tests: Sequence[str], options: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        names = self.path / "tests.txt"
        names.write_text("\n".join(tests))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self.path), str(ROOT / "benchmarks"))),
            "OMP_NUM_THREADS": "1",
            "MOST_SECONDS": str(NEAR_SECONDS),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *options, f"@{names}"],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                preexec_fn=_limit,
            )
        except subprocess.TimeoutExpired:
            return "timeout", ()
        if done.returncode == -signal.SIGXCPU:
            return "timeout", ()
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        failed = tuple(line.split(" - ")[0].partition(" ")[2] for line in lines)
        # Code 2 without a failure: time was over. Code 5: no test of the files is one of `make test`.
        return ("killed" if failed or done.returncode not in (0, 2, 5) else "survived"), failed


def _limit() -> None:
    """Limit what a process uses, and each of the processes that it starts."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _changed(source: str, made: str) -> str:
    """Return the first line that a mutation changes, as `ast` writes it."""
    before, after = ast.unparse(ast.parse(source)).splitlines(), made.splitlines()
    return next((one.strip() for one, other in zip(after, before, strict=False) if one != other), "")
