"""A few kills at random moments, always the same ones; benchmarks/kills.py does hundreds, of all commands."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from killing import LIGHT, SIGNALS, Range, moment

KILLS_EACH = 2
SECONDS = 3.0
"""About what they take on a machine that is not busy."""


@pytest.mark.scripts
@pytest.mark.skipif(sys.platform != "linux", reason="sends POSIX signals, looks into /proc")
@pytest.mark.parametrize("name", ["show", "cbc"])
def test_whoever_is_killed_leaves_nothing(name: str, tmp_path: Path) -> None:
    chance = Random(name)
    with Range(tmp_path / "range") as place:
        faults: list[str] = []
        for number in chance.sample(SIGNALS, KILLS_EACH):
            killed = place.kill(LIGHT[name], number, moment(chance, SECONDS))
            faults += [f"{number}: {fault}" for fault in killed.faults]
    assert not faults
