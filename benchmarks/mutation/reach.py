"""The tests that reach a line, with their seconds, from records on disk.

Records are kept by groups of test files. A group that has its records is left out, so that an ended run goes
on; records belong to one state of the sources and tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from coverage import CoverageData

from .recorder import ROOT

FILES = 8
"""Test files of a group: each group imports PyTorch anew."""

SELECTION = "not scripts and not exhaustive and not clock"
"""Markers of the tests that `make test` runs."""


def state(root: Path = ROOT) -> str:
    """Return a name of the sources and tests as they are in the index. Raises SystemExit if files differ."""
    parts = ["memplan", "tests"]
    if subprocess.run(["git", "diff", "--quiet", "--", *parts], cwd=root).returncode:
        raise SystemExit("sources or tests differ from git's index: commit or add them first")
    listed = subprocess.run(
        ["git", "ls-files", "-s", "--", *parts], cwd=root, capture_output=True, check=True
    )
    return sha256(listed.stdout).hexdigest()[:12]


def groups(root: Path = ROOT) -> list[list[str]]:
    """Return all test files, neighbours together."""
    names = sorted(str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))
    return [names[at : at + FILES] for at in range(0, len(names), FILES)]


def record(folder: Path, jobs: int) -> None:
    """Run the tests of all groups that have no records yet, `jobs` groups at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(lambda files: _recorded(folder, files), groups()):
            print(line, flush=True)


def _recorded(folder: Path, files: Sequence[str]) -> str:
    name = f"{files[0]} to {files[-1]}"
    target = _records(folder, files)
    if target.with_suffix(".json").exists():
        return f"{name}: recorded before"
    environment = {
        **os.environ,
        "RECORD_LINES": str(target),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "benchmarks"), str(ROOT))),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutation.recorder", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", SELECTION, *files], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return f"{name}: {(done.stdout.splitlines() or ['no output'])[-1]}"


def _records(folder: Path, files: Sequence[str]) -> Path:
    return folder / sha256("\n".join(files).encode()).hexdigest()[:16]


class Reach:
    """The records of a folder: which tests reach a line, and the seconds of each."""

    def __init__(self, folder: Path) -> None:
        """Read the records. Raises SystemExit if some tests have none: mutants would seem to survive."""
        if not all(_records(folder, files).with_suffix(".json").exists() for files in groups()):
            raise SystemExit("not all tests are recorded in this state: run `mutants.py record` first")
        self._data = [
            _read(file) for file in sorted(folder.glob("*.sqlite")) if file.with_suffix(".json").exists()
        ]
        rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        self.seconds: dict[str, float] = {test: seconds for row in rows for test, seconds in row.items()}
        self._files = dict[str, dict[int, set[str]]]()

    def tests(self, file: str, line: int) -> list[str]:
        """Return the tests that reach a line and pass without a mutant, fastest first.

        If none is known to, as for lines that run at the import or that Numba has compiled, those that reach
        any line of the file, or of its folder.
        """
        found = self._lines(file).get(line) or self._any(file)
        if not found:
            folder = sorted((ROOT / file).parent.glob("*.py"))
            found = {test for path in folder for test in self._any(str(path.relative_to(ROOT)))}
        return sorted(found & self.seconds.keys(), key=lambda test: (self.seconds[test], test))

    def _any(self, file: str) -> set[str]:
        return {test for tests in self._lines(file).values() for test in tests}

    def _lines(self, file: str) -> dict[int, set[str]]:
        """Return by line the tests that have run it."""
        if file not in self._files:
            found = self._files[file] = dict[int, set[str]]()
            for data in self._data:
                for line, tests in data.contexts_by_lineno(str((ROOT / file).resolve())).items():
                    found.setdefault(line, set()).update(filter(None, tests))
        return self._files[file]


def _read(file: Path) -> CoverageData:
    data = CoverageData(str(file))
    data.read()
    return data


def within(tests: Iterable[str], seconds: dict[str, float], limit: float) -> list[str]:
    """Return the first tests whose seconds together are within a limit; the first one in any case."""
    found, total = list[str](), 0.0
    for test in tests:
        total += seconds.get(test, 0.0)
        if found and total > limit:
            break
        found.append(test)
    return found
