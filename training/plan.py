"""A plan for one shape: the iteration traced, measured, solved, and compared with plain PyTorch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from ..graphs.machine import Machine
from ..planner.budget import Budget
from ..planner.plain import baseline
from ..runtime.compare.verdict import NOT_COMPARED, compared
from ..runtime.model.iteration import Iteration
from ..runtime.profile.profile import graph_from, measure_program
from ..runtime.run.cycle import Terms
from ..runtime.run.execute import PlannedStep
from ..runtime.trace.settle import residents, settled
from ..solvers.problem import Problem
from ..solvers.registry.run import solve


@dataclass
class Planner:
    """What all plans of a step have in common. bytes: the budget; a share is one of the first plan's peak."""

    budget: Budget
    solver: str
    time_limit: float | None
    machine: Machine | None
    compare: bool
    undo: bool
    bytes: int | None = None

    def __call__(self, iteration: Iteration) -> PlannedStep:
        """Weights, buffers, optimizer and random numbers are afterwards as before. Raises MemplanError."""
        program = settled(iteration)
        graph = graph_from(program, measure_program(program, residents(program, iteration)))
        if self.bytes is None:
            self.bytes = self.budget.bytes_of(baseline(graph).peak)
        solution = solve(self.solver, Problem(graph, self.bytes, self.machine), self.time_limit)
        terms = Terms(graph, self.bytes, self.machine)
        step = PlannedStep(iteration, program, solution.schedule, terms, undo=self.undo)
        if self.compare and compared(iteration, step, graph) is None:
            warnings.warn(NOT_COMPARED, stacklevel=2)
        return step
