"""`time_limit=` as a time with a unit."""

from __future__ import annotations

import pytest
from memplan.training.options import PlanningOptions


@pytest.mark.parametrize(
    ("given", "seconds"), [("1m", 60.0), ("1m30s", 90.0), ("500 ms", 0.5), (2, 2), (None, None)]
)
def test_units(given: object, seconds: float | None) -> None:
    assert PlanningOptions(budget="60%", time_limit=given).time_limit == seconds  # pyright: ignore
