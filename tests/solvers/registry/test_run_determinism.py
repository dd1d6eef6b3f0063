"""The same solver, seed and number of moves give the same schedule, whatever the process hashes with.

The golden table, recorded by a process that hashed with another seed, shows it (test_catalogue_golden.py).
This is for those solvers that are not compared with it, as another version than the recorded one is
installed. Without a time limit: what a clock decides differs from run to run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from golden_table import SETTINGS, recorded, solvers, versions

NOT_COMPARED = [solver for solver in solvers() if recorded(solver)[0] != versions(solver)]

SOLVE = """
import sys
from contextlib import suppress
from hashlib import sha256
from dataclasses import replace
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.planner.bounds import minimum_memory
from memplan.planner.baseline import baseline
from memplan.solvers.auto import auto
from memplan.solvers.registry import run as registry
from memplan.solvers.problem import InfeasibleError, NotAcceptedError, Problem
from random import Random
from small_offload import small_training
from training_graphs import training

auto.prove = lambda *_given: None  # when a bound ends a race is up to the machine
settings = {settings!r}
solvers = {solvers!r}
moving = small_training(Random(1), 4, states=True, host=True, saved=True, moving=12)
problems = [
    Problem(training(3, 5, update="early"), 0),
    Problem(chain(7, seed=2), 0),
    Problem(moving, 0, Machine(links=Links(2, 2, 2, 2))),
    Problem(chain(5, seed=1), 0, Machine(links=Links(2**20, 2**20))),
]
for name in solvers:
    for place, problem in enumerate(problems):
        low, high = minimum_memory(problem.graph, problem.machine), baseline(problem.graph).peak
        if problem.machine is not None and name == "auto":
            continue
        with suppress(InfeasibleError, NotAcceptedError):
            within = replace(problem, budget=(low + high) // 2)
            found = registry.solve(name, within, None, settings.get(name), bound_seconds=0)
            steps = found.schedule
            digest = sha256(b"".join(c.tobytes() for c in (steps.verbs, steps.targets, steps.wheres)))
            digest.update(repr(sorted(map(sorted, (steps.initial.host, steps.initial.disk)))).encode())
            print(name, place, digest.hexdigest(), found.figures, flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(not NOT_COMPARED, reason="all are compared with the golden table, which shows it")
def test_a_solver_gives_the_same_schedule_in_another_process() -> None:
    code = SOLVE.format(settings=SETTINGS, solvers=NOT_COMPARED)
    reported = [_run(code, seed) for seed in ("1", "2")]
    assert reported[0] == reported[1]
    answered = {line.split()[0] for line in reported[0].splitlines()}
    assert answered == {*NOT_COMPARED}


def _run(code: str, hash_seed: str) -> str:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": str(Path(__file__).parents[2] / "support"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=400
    ).stdout
