"""The table of gaps: the largest bound counts, and what found no schedule is in no statistic."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from gaps import table


def test_the_gap_is_to_the_largest_bound() -> None:
    found = {"model": "m", "card": "c", "budget": 2**30, "time": 2.1, "bounds": {"a": 1.0, "b": 2.0}}
    none = {"model": "n", "card": "c", "budget": 2**30, "refused": "too little"}
    lines = list(table([found, none]))
    assert lines[2] == "| m | c | 1.0 GiB | 2.1 s | 1 s | 2 s | 5.0% |"
    assert lines[3] == "| n | c | 1.0 GiB | none | | | |"
    assert lines[-1] == "1 gaps: median 5.0%, largest 5.0%"
