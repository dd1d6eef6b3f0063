"""Several seeds of a solver: rows, medians, the table; shifted geometric means against their definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from memplan.cli.bench.arguments import chosen_contenders
from memplan.cli.bench.tables import comparison_lines
from memplan.comparison.file import read_rows
from memplan.comparison.summary import (
    OVERHEAD_SHIFT,
    SECONDS_SHIFT,
    geometric_mean,
    median_rows,
    standings,
)
from memplan.comparison.trials import Row
from memplan.graphs.errors import InputError


def seeded(rows: Callable[..., Row], overheads: list[float | None], at: int = 60) -> list[Row]:
    given = enumerate(overheads)
    return [rows("a", "g", at, one, 1.0, f'{{"moves": 9, "seed": {seed}}}') for seed, one in given]


@pytest.mark.scripts
def test_a_row_for_each_seed_of_those_that_have_one(bench: Callable[..., Result]) -> None:
    words = ["graphs/chain.json", "--solvers", "fake,store-all", "--budgets", "100%", "-o", "rows.csv"]
    result = bench(*words, "--seeds", 3)
    assert result.exit_code == 0, result.stderr
    found = [(row.solver, row.seed) for row in read_rows(Path("rows.csv")).values()]
    assert found == [("fake", 0), ("fake", 1), ("fake", 2), ("store-all", None)]
    assert "0.00/0.00/0.00*" in result.stdout
    assert bench(*words, "--seeds", "2,7").exit_code == 0  # 2 is there
    assert [row.seed for row in read_rows(Path("rows.csv")).values()] == [0, 1, 2, None, 7]


def test_seeds_of_nobody_and_seeds_twice() -> None:
    with pytest.raises(InputError, match="--seeds: of rotor, store-all none has such a setting"):
        chosen_contenders("rotor,store-all", {}, None, (0, 1))
    with pytest.raises(InputError, match=r"--seeds and --set search.seed= say the same: give one"):
        chosen_contenders("search", {"search.seed": "4"}, None, (0, 1))


@pytest.mark.parametrize("text", ["0", "three", "1.5", "-1", "1,,2", "1001", "²"])
def test_what_is_no_seeds(bench: Callable[..., Result], text: str) -> None:
    result = bench("graphs", "--seeds", text)
    assert result.exit_code == 2
    assert "seeds" in result.stderr


def test_the_median_stands_for_a_solver(rows: Callable[..., Row]) -> None:
    """Three seeds 5, 20, 10: 10. Four, one of them without a schedule: the slower of two in the middle. Two,
    one of them without: none."""
    three: list[float | None] = [5.0, 20.0, 10.0]
    four: list[float | None] = [5.0, None, 20.0, 10.0]
    two: list[float | None] = [5.0, None]
    for overheads, median in ((three, 10.0), (four, 20.0), (two, None)):
        (row,) = median_rows(seeded(rows, overheads))
        assert row.overhead_percent == median
    b = rows("b", "g", 60, 7.0)
    reported = {one.solver: one for one in standings([*seeded(rows, three), b])}
    assert (reported["a"].rows, reported["a"].wins, reported["a"].overhead) == (1, 0, 10.0)
    assert reported["b"].wins == 1


def test_spread_is_in_the_table(rows: Callable[..., Row]) -> None:
    def cell(overheads: list[float | None]) -> str:
        lines = [str(line).split() for line in comparison_lines([*seeded(rows, overheads)], [])]
        return lines[2][0]

    assert cell([20.0, 5.0, 10.0]) == "5.00/10.00/20.00*"
    assert cell([20.0, None, 5.0]) == "5.00/20.00/-*"
    assert cell([None, None]) == "-"


def test_settings_but_the_seed_make_a_contestant(rows: Callable[..., Row]) -> None:
    a, b = (rows("a", "g", 60, 1.0, 1.0, json.dumps({"seed": 1, "moves": moves})) for moves in (5, 6))
    assert [one.solver for one in standings([a, b])] == ['a {"moves": 5}', 'a {"moves": 6}']


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=8), st.sampled_from([1.0, 10.0]))
def test_shifted_geometric_mean(values: list[float], shift: float) -> None:
    by_product = prod(x + shift for x in values) ** (1 / len(values)) - shift
    mean = geometric_mean(values, shift)
    assert mean == pytest.approx(by_product, rel=1e-9, abs=1e-8)
    assert mean is not None
    assert min(values) - 1e-8 <= mean <= sum(values) / len(values) + 1e-8


def test_geometric_means_of_a_solver(rows: Callable[..., Row]) -> None:
    """Overheads 0 and 30 %, in 2 and 26 s: √(10 · 40) − 10 and √(12 · 36) − 10."""
    (one,) = standings([rows("a", "g", 60, 0.0, 2.0), rows("a", "g", 50, 30.0, 26.0)])
    assert one.overhead_geometric == pytest.approx(400**0.5 - OVERHEAD_SHIFT)
    assert one.seconds_geometric == pytest.approx(432**0.5 - SECONDS_SHIFT)
    assert geometric_mean([], 1.0) is None
    assert geometric_mean([-5.0], 10.0) == pytest.approx(0.0)
