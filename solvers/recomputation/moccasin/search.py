"""CP-SAT (OR-tools) at work on Moccasin's program."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from ortools.sat.python import cp_model

from ...milp.result import BackendError, Outcome
from .model import RetentionProgram
from .question import Found, Limits
from .start import sequence_of


class Search(cp_model.CpSolverSolutionCallback):
    """progress: called with every new best. `stop` may be called from another thread."""

    def __init__(self, program: RetentionProgram, limits: Limits, progress: Callable[[Found], None]) -> None:
        super().__init__()
        self.program, self.limits, self.progress = program, limits, progress
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.num_workers = limits.threads
        parameters.random_seed = limits.seed
        if limits.seconds is not None:
            parameters.max_time_in_seconds = max(limits.seconds, 0.0)

    def run(self) -> Found:
        status = self.solver.solve(self.program.model, self)
        outcome = _OUTCOMES.get(status)
        seconds = self.solver.wall_time
        if outcome is None:
            raise BackendError(f"CP-SAT gave up: {self.solver.status_name(status)}")
        if outcome == Outcome.INFEASIBLE:
            return Found(outcome, None, inf, inf, seconds, done=True)
        bound = self.program.bound(self.solver.best_objective_bound)
        if outcome == Outcome.UNKNOWN:
            return Found(outcome, None, inf, bound, seconds, done=True)
        objective = self.program.value(self.solver.objective_value)
        return Found(
            outcome, sequence_of(self.program, self.solver.value), objective, bound, seconds, done=True
        )

    def on_solution_callback(self) -> None:
        objective = self.program.value(self.objective_value)
        bound = self.program.bound(self.best_objective_bound)
        runs = sequence_of(self.program, self.value)
        self.progress(Found(Outcome.FEASIBLE, runs, objective, bound, self.wall_time, done=False))
        if self.limits.enough is not None and self.objective_value <= self.limits.enough:
            self.stop_search()

    def stop(self) -> None:
        self.solver.stop_search()


_OUTCOMES = {
    cp_model.OPTIMAL: Outcome.OPTIMAL,
    cp_model.FEASIBLE: Outcome.FEASIBLE,
    cp_model.INFEASIBLE: Outcome.INFEASIBLE,
    cp_model.UNKNOWN: Outcome.UNKNOWN,
}
