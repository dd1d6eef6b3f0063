"""OR-tools and HiGHS have symbols in common: the worker that runs OR-tools must never load HiGHS."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_worker_of_moccasin_loads_no_highs() -> None:
    pytest.importorskip("ortools")
    look = "import sys, memplan.solvers.recomputation.moccasin.worker; print('highspy' in sys.modules)"
    reported = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert reported.stdout.split() == ["False"]
