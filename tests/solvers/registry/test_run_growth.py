"""Solves leave nothing behind in their process. A thousand of them: benchmarks/many_solves.py."""

from __future__ import annotations

import sys

import pytest
from growth import held, solve_many

MOST_BYTES = 30 * 2**20
QUICK = (
    "store-all",
    "layer-checkpoint",
    "torch-partitioner",
    "chen-sqrt",
    "revolve",
    "rotor",
    "rk-rotor",
    "checkmate",
    "tw-remat",
    "h-ilp",
    "l2l",
)


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_solves_leave_nothing_behind() -> None:
    solve_many(40, QUICK, 0.1)
    before = held()
    assert solve_many(120, QUICK, 0.1, first=40) > 20
    after = held()
    assert after.bytes - before.bytes < MOST_BYTES
    assert after.files <= before.files
    assert after.threads <= before.threads
    assert after.children <= before.children
