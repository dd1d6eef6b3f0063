"""The search compiled by another process: what it makes is found here, nobody waits longer than needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
from memplan.solvers.recomputation.search import compiling

LOOK = """
from memplan.solvers.recomputation.search.compiling import at_hand, compile_apart
told = []
assert not at_hand()
compile_apart(told.append, lambda: False)
assert at_hand()
assert len(told) == 1, told
compile_apart(told.append, lambda: False)
assert len(told) == 1, told
"""


@pytest.mark.timeout(600)
def test_what_the_other_process_compiles_is_at_hand_here(tmp_path: Path) -> None:
    """With nothing kept before; then there is nothing left to do."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    asked = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_who_has_enough_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "at_hand", lambda: False)
    begin = monotonic()
    compiling.compile_apart(lambda _line: None, lambda: True)
    assert monotonic() - begin < 5.0


def test_without_a_place_to_keep_it_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "at_hand", lambda: False)
    monkeypatch.setattr(compiling, "cache_folder", lambda: None)
    monkeypatch.setattr(compiling.child, "start", lambda *_: pytest.fail("started"))
    compiling.compile_apart(lambda line: pytest.fail(line), lambda: False)
