"""Every solver on random problems (solver_cases.py); benchmarks/fuzz.py has patience for more.

No errors but the declared ones, nothing over the budget, no bound above any solver's schedule, no floor and
no least budget that does not hold.
"""

from __future__ import annotations

import pytest
from memplan.solvers.registry import run as registry
from solver_cases import contradictions, random_problem, verdict, warm_up

pytestmark = pytest.mark.scripts

SOLVERS = [entry.name for entry in registry.entries()]
QUICK = {"store-all", "chen-sqrt", "revolve", "rotor"}
BATCH = 20
SELDOM = 15
"""One case in so many is for all solvers, not for the quick ones alone."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up(SOLVERS)


@pytest.mark.parametrize("batch", range(5))
def test_no_solver_contradicts_the_simulator_or_another(batch: int) -> None:
    faults: list[str] = []
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        problem = random_problem(seed)
        solvers = [solver for solver in SOLVERS if solver in QUICK or seed % SELDOM == 0]
        verdicts = [verdict(solver, problem, time_limit=0.5) for solver in solvers]
        faults += [f"seed {seed}: {one.solver}: {fault}" for one in verdicts for fault in one.faults]
        faults += [f"seed {seed}: {line}" for line in contradictions(problem, verdicts)]
    assert not faults
