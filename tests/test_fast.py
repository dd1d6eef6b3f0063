"""`tests/fast.tsv`, the list of `make test-fast`, has at least one test of every subpackage."""

from __future__ import annotations

import ast
from pathlib import Path

import memplan
import pytest

ROOT = Path(__file__).parents[1]
ROWS = [tuple(line.split("\t")) for line in (ROOT / "tests" / "fast.tsv").read_text().splitlines()]


def test_every_subpackage_has_a_test_and_no_other_is_named() -> None:
    found = set[str]()
    for folder in Path(memplan.__file__).parent.iterdir():  # links, which rglob does not follow
        for path in folder.resolve().rglob("__init__.py"):
            found.add("/".join([folder.name, *path.parent.relative_to(folder.resolve()).parts]))
    assert {subpackage for subpackage, _test in ROWS} == found


@pytest.mark.parametrize("test", sorted({test for _subpackage, test in ROWS}))
def test_each_is_there_and_not_among_the_heavy_ones(test: str) -> None:
    name, _, function = test.partition("::")
    tree = ast.parse((ROOT / name).read_text())
    tests = [
        each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    ]
    quick = {
        each.name
        for each in tests
        if "pytest.mark.scripts" not in [ast.unparse(mark) for mark in each.decorator_list]
    }
    assert function in quick if function else quick


def test_rows_are_sorted_and_none_stands_twice() -> None:
    assert sorted(set(ROWS)) == ROWS
