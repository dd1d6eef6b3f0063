"""Heavy tests that a change touches: tests/touched.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from touched import changed_since, last_night, touched

FILES = {
    "memplan/__init__.py": '_FROM = {"optimize": ".training.optimize"}\n',
    "memplan/training/__init__.py": "",
    "memplan/training/optimize.py": "def optimize():\n    from ..solvers.registry import catalogue\n",
    "memplan/solvers/__init__.py": "",
    "memplan/solvers/registry/__init__.py": "",
    "memplan/solvers/registry/catalogue.py": 'ENTRIES = [".paths.rotor"]\n',
    "memplan/solvers/paths/__init__.py": "",
    "memplan/solvers/paths/rotor.py": "from ...graphs import graph\n",
    "memplan/graphs/__init__.py": "",
    "memplan/graphs/graph.py": "",
    "memplan/graphs/kinds/__init__.py": "",
    "memplan/graphs/kinds/wide.py": "",
    "memplan/graphs/kinds_of_all.py": "from . import kinds\n",
    "benchmarks/fuzz.py": "",
    "tests/support/ranks.py": "",
    "tests/conftest.py": "",
    "tests/training/test_step.py": "import memplan\nfrom ranks import pair\n",
    "tests/solvers/test_rotor.py": "from memplan.solvers.paths.rotor import solve\n",
    "tests/graphs/test_kinds.py": "from memplan.graphs.kinds_of_all import all_kinds\n",
    "tests/benchmarks/test_fuzz.py": "import fuzz\n",
}
STEP, ROTOR, KINDS, FUZZ = "test_step.py", "test_rotor.py", "test_kinds.py", "test_fuzz.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("memplan/graphs/graph.py", {STEP, ROTOR}),  # from the solver, that from a text of the catalogue
        ("memplan/training/optimize.py", {STEP}),
        ("memplan/graphs/kinds/wide.py", {KINDS}),  # with its package
        ("tests/support/ranks.py", {STEP}),
        ("tests/graphs/test_kinds.py", {KINDS}),
        ("benchmarks/fuzz.py", {FUZZ}),
        ("memplan/graphs/gone.py", set()),
        ("docs/design.md", set()),
        ("README.md", set()),
        ("tests/nightly.tsv", set()),  # the row of a run comes after its commit
    ],
)
def test_a_change_touches_what_imports_it(root: Path, changed: str, tests: set[str]) -> None:
    found = touched([changed], root)
    assert found is not None
    assert {path.name for path in found} == tests


@pytest.mark.parametrize(
    "changed", ["constraints.txt", "tests/conftest.py", "tests/golden/rows.tsv", "memplan/x.json"]
)
def test_settings_and_data_touch_all_tests(root: Path, changed: str) -> None:
    assert touched(["README.md", changed], root) is None


def test_changes_since_an_unknown_commit_are_not_known(root: Path) -> None:
    assert changed_since("0" * 40, root) is None
    assert changed_since("") is None  # no complete run yet
    assert changed_since("HEAD") is not None


def test_the_last_night_is_the_newest_row() -> None:
    assert last_night("# commit\tday\n") == ""
    assert last_night("# commit\tday\nabc\t2026-01-01\ndef\t2026-01-02\n") == "def"
