"""The time that a search has left: none once its clock is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from memplan.solvers.offloading.weight_offload.search import OrderSearch


@pytest.mark.parametrize(("clock", "left"), [(-3.0, 0.0), (0.0, 0.0), (0.25, 0.25), (7.0, 7.0)])
def test_no_seconds_are_left_once_the_clock_is_over(clock: float, left: float) -> None:
    search = OrderSearch.__new__(OrderSearch)
    search.clock = cast("Any", SimpleNamespace(left=clock))
    assert search.left == left
