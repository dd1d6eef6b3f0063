"""Search of a Moccasin program in a worker process: the functions that search.py calls there, and CP-SAT.

OR-tools and highspy each bring a libhighs of their own version, and one process can load only one of them.
"""

from __future__ import annotations

from math import inf

from ortools.sat.python import cp_model

from ....graphs.graph import Graph
from ...milp.result import BackendError, MilpStatus
from ...workers.serve import Call
from .model import RetentionProgram, retention_program
from .search import Limits, MoccasinResult, Question
from .start import hint, sequence_of
from .timeline import Timeline


def search(call: Call, graph: Graph, question: Question) -> MoccasinResult:
    """Search for the best sequence; each new best is reported as an event."""
    timeline = Timeline(graph, question.capacity, question.copies)
    program = retention_program(timeline, least=question.least)
    if question.start:
        hint(program, question.start)
    if call.stopped.is_set():
        return MoccasinResult.nothing()
    return _SolutionCallback(program, question.limits, call).run()


class _SolutionCallback(cp_model.CpSolverSolutionCallback):
    def __init__(self, program: RetentionProgram, limits: Limits, call: Call) -> None:
        super().__init__()
        self.program, self.limits, self.call = program, limits, call
        self.solver = cp_model.CpSolver()
        parameters = self.solver.parameters
        parameters.num_workers = limits.threads
        parameters.random_seed = limits.seed
        if limits.seconds is not None:
            parameters.max_time_in_seconds = max(limits.seconds, 0.0)

    def run(self) -> MoccasinResult:
        self.call.on_stop(self.solver.stop_search)
        code = self.solver.solve(self.program.model, self)
        self.call.on_stop(None)
        status = _STATUSES.get(code)
        seconds = self.solver.wall_time
        if status is None:
            raise BackendError(f"CP-SAT gave up: {self.solver.status_name(code)}")
        if status == MilpStatus.INFEASIBLE:
            return MoccasinResult(status, None, inf, inf, seconds)
        bound = self.program.bound(self.solver.best_objective_bound)
        if status == MilpStatus.UNKNOWN:
            return MoccasinResult(status, None, inf, bound, seconds)
        objective = self.program.value(self.solver.objective_value)
        return MoccasinResult(status, sequence_of(self.program, self.solver.value), objective, bound, seconds)

    def on_solution_callback(self) -> None:
        objective = self.program.value(self.objective_value)
        bound = self.program.bound(self.best_objective_bound)
        runs = sequence_of(self.program, self.value)
        self.call.report(MoccasinResult(MilpStatus.FEASIBLE, runs, objective, bound, self.wall_time))
        enough = self.limits.enough is not None and self.objective_value <= self.limits.enough
        if enough or self.call.stopped.is_set():  # a stop that came before CP-SAT had begun was lost
            self.stop_search()


_STATUSES = {
    cp_model.OPTIMAL: MilpStatus.OPTIMAL,
    cp_model.FEASIBLE: MilpStatus.FEASIBLE,
    cp_model.INFEASIBLE: MilpStatus.INFEASIBLE,
    cp_model.UNKNOWN: MilpStatus.UNKNOWN,
}
