"""The test files near a source: its own first, then by how few imports lead from them to it."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from .recorder import ROOT

sys.path.append(str(ROOT / "tests" / "support"))

from touched import imports, modules

FILES = (3, 5)
"""Test files of a mutant, in runs one after the other: collecting them takes longer than most tests."""

GOLDEN = {"solvers": "tests/solvers/registry/test_catalogue_golden.py"}
"""By package a test file that asks all of it, by names instead of imports."""


def near(file: str, root: Path = ROOT) -> list[list[str]]:
    """Return the nearest test files of a source, by runs.

    First come those that stand where the source stands and begin with its name. The others stand by the
    number of imports that lead from them to it. Of those with the same number, files of its folder come
    first, then those with few imports: more of such a file is about it.

    file: the source, by its path from the root.
    """
    source, known, imported = Path(file), modules(root), imports(root)
    name = ".".join(("memplan", *source.with_suffix("").parts))
    folder = root / "tests" / source.parent

    def nearness(test: str, distance: int) -> tuple[bool, int, bool, int, str]:
        path = known[test]
        own = path.parent == folder and f"{path.stem}_".startswith(f"test_{source.stem}_")
        return not own, distance, path.parent != folder, len(imported[test]), test

    tests = {each: distance for each, distance in _distances(name, root).items() if ".test_" in each}
    ordered = [
        str(known[each].relative_to(root)) for each in sorted(tests, key=lambda t: nearness(t, tests[t]))
    ]
    first, more = FILES
    golden = GOLDEN.get(source.parts[0])
    second = [*([golden] if golden else []), *ordered[first : first + more]]
    return [run for run in (ordered[:first], second) if run]


def _distances(name: str, root: Path) -> dict[str, int]:
    """Return by module how many imports lead from it to the named one, if any do."""
    importers = defaultdict[str, list[str]](list)
    for importer, targets in imports(root).items():
        for target in targets:
            importers[target].append(importer)
    found, waiting = {name: 0}, [name]
    for each in waiting:
        for importer in importers[each]:
            if importer not in found:
                found[importer] = found[each] + 1
                waiting.append(importer)
    return found
