"""`optimize` keeps neither objects nor bytes of plans that are gone; more calls: benchmarks/leaks.py."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = Path(__file__).parents[2] / "benchmarks" / "leaks.py"
ROUNDS, CALLS, MOST_BYTES = 6, 48, 10_000


@pytest.mark.scripts
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc")
@pytest.mark.timeout(600)
def test_plans_that_are_gone_keep_no_object_and_less_than_10_kb_each():
    """Eight kinds of calls in turn. A type with an object more per round, or 10 kB per call, would show."""
    words = ("--one", "all in turn", "--warm-up", "4", "--calls", str(ROUNDS))
    asked = [sys.executable, "-W", "ignore", MEASURE, *words]
    found = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert {kind: number for kind, number in found["objects"].items() if number >= ROUNDS} == {}
    assert found["bytes"] < MOST_BYTES * CALLS
