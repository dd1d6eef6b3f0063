"""Every solver on random problems (solver_cases.py); benchmarks/solver_fuzz.py has patience for more.

No errors but the declared ones, nothing over the budget, no bound above any solver's schedule, no floor and
no least budget that does not hold.
"""

from __future__ import annotations

import pytest
from memplan.solvers import registry
from solver_cases import contradictions, random_problem, verdict

SOLVERS = [entry.name for entry in registry.entries()]
SLOW = {"checkmate"}
BATCH = 20


@pytest.mark.parametrize("batch", range(5))
def test_no_solver_contradicts_the_simulator_or_another(batch: int) -> None:
    faults: list[str] = []
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        problem = random_problem(seed)
        solvers = [solver for solver in SOLVERS if solver not in SLOW or seed % 4 == 0]
        verdicts = [verdict(solver, problem, time_limit=1.0) for solver in solvers]
        faults += [f"seed {seed}: {one.solver}: {fault}" for one in verdicts for fault in one.faults]
        faults += [f"seed {seed}: {line}" for line in contradictions(problem, verdicts)]
    assert not faults
