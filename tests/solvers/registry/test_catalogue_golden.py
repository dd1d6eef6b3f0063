"""Solvers give the schedules, and bounds the seconds, that are recorded in golden/."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import zip_longest

import pytest
from golden_table import (
    BOUNDS,
    FOLDER,
    WITHOUT_PROGRAMS,
    bound_rows,
    freeze_the_clock,
    recorded,
    same,
    solver_rows,
    solvers,
    versions,
)

AGAIN = "\nif that is on purpose, record it again: .venv/bin/python tests/support/golden_table.py "


@pytest.fixture(scope="module", autouse=True)
def frozen_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        freeze_the_clock(patch)
        yield


QUICK = ("layered", "chain", "layers")
"""Instances that the suite asks solvers of programs; the others have all: they take milliseconds."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("solver", solvers())
def test_a_solver_answers_as_recorded(solver: str) -> None:
    _compare(solver, solver_rows(solver))


@pytest.mark.parametrize("solver", [each for each in solvers() if each != "moccasin"])  # a process per row
def test_a_solver_answers_as_recorded_on_a_few(solver: str) -> None:
    only = () if solver in WITHOUT_PROGRAMS else QUICK
    _compare(solver, solver_rows(solver, only), only)


def test_bounds_are_as_recorded_on_a_few() -> None:
    _compare(BOUNDS, bound_rows(QUICK), QUICK)


@pytest.mark.scripts
def test_bounds_are_as_recorded() -> None:
    _compare(BOUNDS, bound_rows())


def test_every_file_is_compared() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted([*solvers(), BOUNDS])


def _compare(name: str, rows: list[str], only: Collection[str] = ()) -> None:
    numbers, wanted = recorded(name)
    wanted = [row for row in wanted if not only or row.split(" ")[0] in only]
    if numbers != versions(name):
        pytest.skip(f"recorded with {numbers}: another solver of programs may choose another of several best")
    changed = [
        f"{name}: {row!r}, recorded is {other!r}"
        for row, other in zip_longest(rows, wanted, fillvalue="")
        if not same(row, other)
    ]
    assert not changed, "\n".join(changed) + AGAIN + name
