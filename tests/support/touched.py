"""Which test files a change touches: those whose imports lead to a file that has changed.

An import counts wherever it stands in a file. So do texts that name a module, from which solvers, optimizers
and commands are imported when they are needed. Test data touches all tests: who reads it is not known.
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NIGHTS = ROOT / "tests" / "nightly.tsv"
"""Complete runs by `make nightly`, newest last: commit, day."""

READ_BY_ALL = ("pyproject.toml", "constraints.txt", "Makefile", "tests/conftest.py")
READ_BY_NONE = (
    *("docs/", ".ci/", ".git", "benchmarks/results/", "LICENSE", "CITATION.cff"),
    *("tests/fast.tsv", "tests/nightly.tsv"),
)
"""Beginnings of the names of files whose tests are not heavy, and of the record of complete runs itself."""


def changed_since(commit: str, root: Path = ROOT) -> list[str] | None:
    """Return the files that differ between a commit and the working tree; None if git doesn't know it."""
    command = ["git", "-C", str(root), "diff", "--name-only", "--no-renames", commit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.splitlines()


def last_night(rows: str) -> str:
    """Return the commit of the newest complete run, '' if there is none."""
    lines = [line for line in rows.splitlines() if line and not line.startswith("#")]
    return lines[-1].partition("\t")[0] if lines else ""


def touched(changed: Iterable[str], root: Path = ROOT) -> set[Path] | None:
    """Return the test files that some changed files touch; None for all.

    changed: paths from the root.
    """
    known, beginnings = modules(root), set[str]()
    for each in changed:
        name = _dotted(Path(each))
        if each.startswith(READ_BY_NONE) or (each.endswith(".md") and not each.startswith("tests/")):
            continue
        if each.endswith(".py") and each not in READ_BY_ALL:
            beginnings |= {name} & known.keys()  # of a file that is gone, all importers have changed
        else:
            return None
    return {known[name] for name in _leading_to(beginnings, imports(root)) if ".test_" in name}


@cache
def modules(root: Path) -> dict[str, Path]:
    """Return the files of the package, the tests, benchmarks and examples, by their paths with dots."""
    folders = ("memplan", "tests", "benchmarks", "examples")
    paths = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    return {_dotted(path.relative_to(root)): path for path in paths}


@cache
def imports(root: Path) -> Mapping[str, set[str]]:
    """Return by module which modules it imports."""
    known, named = modules(root), defaultdict[str, set[str]](set)
    for name in known:
        parts = name.split(".")
        # What is not in the package is found by many entries of sys.path. A text of one word names no module.
        shortest = 1 if parts[0] != "memplan" else min(2, len(parts))
        for count in range(shortest, len(parts) + 1):
            named[".".join(parts[-count:])].add(name)
    return {name: set(_imported(name, path, known, named)) for name, path in known.items()}


def _imported(
    name: str, path: Path, known: Mapping[str, Path], named: Mapping[str, set[str]]
) -> Iterator[str]:
    """Yield the modules that a file imports or names in a text; with a package, those in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
            whole = [f"{base}.{alias.name}" for alias in node.names]
            yield from {base, *whole} & known.keys()
            packages = (each for each in whole if each in known and known[each].name == "__init__.py")
            yield from (each for one in packages for each in known if each.startswith(f"{one}."))
        elif isinstance(node, ast.ImportFrom):
            for each in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)):
                yield from named.get(each, ())
        elif isinstance(node, ast.Import):
            yield from (each for alias in node.names for each in named.get(alias.name, ()))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable():
            text = node.value.strip(".")
            yield from {f"{package}.{text}"} & known.keys()
            if "." in text:
                yield from (each for each in named.get(text, ()) if each.startswith("memplan."))


def _leading_to(names: set[str], imported: Mapping[str, set[str]]) -> set[str]:
    """Return the modules whose imports lead to any of these, with these."""
    importers = defaultdict[str, set[str]](set)
    for name, targets in imported.items():
        for target in targets:
            importers[target].add(name)
    found, waiting = set(names), [*names]
    while waiting:
        new = importers[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
