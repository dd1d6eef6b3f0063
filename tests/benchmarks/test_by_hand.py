"""`auto` is never slower than offloading that people set by hand: a sample of the benchmark's cells."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from by_hand import BY_HAND, CARDS, best_by_hand, cells, measured, problem_of, table


@pytest.mark.scripts
@pytest.mark.parametrize("card", CARDS)
def test_auto_is_never_slower(card: str) -> None:
    times = measured(problem_of("gpt2", card, 256), 20.0)
    hand = best_by_hand(times)
    assert hand is not None
    auto = times["auto"]
    assert auto is not None
    assert auto <= hand[0]


def test_there_are_fifty_cells_and_a_line_each() -> None:
    assert len(list(cells())) == 50
    times = dict.fromkeys(BY_HAND, None) | {"paged-optimizer": 2.0, "auto": 1.0}
    lines = list(table([{"model": "m", "card": "c", "length": 1, "budget": 2**30, "times": times}]))
    assert lines[2] == "| m | c | 1.0 GiB | paged-optimizer | 50.0% |"
    assert lines[-1] == "1 cells: auto slower in 0, nothing by hand in 0, 0.500 of the time in the mean"
