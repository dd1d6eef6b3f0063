"""Ctrl-C while compiled code runs on the main thread: the best so far, not a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SEARCH = """
import os, signal, threading
from memplan.graphs.generators import chain
from memplan.planner.baseline import baseline
from memplan.solvers.recomputation.search import search
from memplan.solvers.problem import Options, Problem

graph = chain(60, seed=1)
problem = Problem(graph, baseline(graph).peak * 7 // 10)
search.solve(problem, Options(settings=search.Settings(moves=1)))
for seconds in (0.31, 0.47, 0.83, 1.3):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    answer = search.solve(problem, Options(settings=search.Settings(moves=10**6)))
    assert answer.interrupted, seconds
print("all there")
"""


@pytest.mark.scripts
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_best_so_far_is_not_lost_to_a_signal_in_compiled_code() -> None:
    """In a process of its own: the fault was a crash of the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    ran = subprocess.run(
        [sys.executable, "-c", SEARCH],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert ran.returncode != -signal.SIGSEGV
    assert ran.stdout == "all there\n", ran.stderr
