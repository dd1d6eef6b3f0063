"""Ctrl-C at any moment of a search: the best so far, or nothing at all; never a claim that nothing exists.

The interrupts are real KeyboardInterrupts. They come when the solver looks at its clock or reports a line:
`Options.cancelled` and `Options.report` raise them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import inf

import pytest
from memplan.graphs.generators import chain
from memplan.graphs.machine import Links, Machine
from memplan.instances.models import Transformer
from memplan.instances.transformer import Rates, Training, transformer
from memplan.planner.baseline import baseline
from memplan.planner.bounds import minimum_memory
from memplan.planner.simulator.simulate import simulate
from memplan.solvers.problem import InfeasibleError, Options, Problem, SolverResult, Status
from memplan.solvers.registry.catalogue import entry, module_of

MACHINE = Machine(links=Links(4e7, 4e7, 4e7, 2e7))
MODEL = Transformer("small", 4, 64, 256, 4, 100, "made up", positions=32, tied=True)

RECOMPUTING = ("rotor", "rk-rotor", "search", "tw-remat")
OFFLOADING = ("joint", "pofo", "offmate", "lohan", "stronghold", "memferry", "offload-greedy")

MOVES = {"search": 50, "joint": 20, "offload-greedy": 5_000}
"""Few moves for those that anneal."""

HEURISTIC = ("tw-remat", "offload-greedy")
"""Solvers whose status never says that a limit ended the search."""


@dataclass
class Interrupt:
    """Raises KeyboardInterrupt once, at the `at`-th call; counts the calls."""

    at: float
    calls: int = 0

    def cancelled(self) -> bool:
        self._call()
        return False

    def report(self, _line: str) -> None:
        self._call()

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt


def solved(solver: str, problem: Problem, interrupt: Interrupt) -> SolverResult:
    module = module_of(entry(solver))
    settings = module.Settings(moves=MOVES[solver]) if solver in MOVES else None
    return module.solve(problem, Options(None, settings, interrupt.report, interrupt.cancelled))


@cache
def problem_for(solver: str) -> Problem:
    """Return a small problem whose baseline does not fit."""
    if solver in RECOMPUTING or solver == "pofo":
        graph = chain(10, seed=6, parameters=False)
    else:
        rates = Rates(flops=1e9, update_device=1e9, update_host=1e8)
        graph = transformer(MODEL, Training(4, 32, granularity="layer", update="after"), rates)
    machine = None if solver in RECOMPUTING else MACHINE
    low, high = minimum_memory(graph, machine), baseline(graph).peak
    return Problem(graph, (3 * low + 7 * high) // 10, machine)


@cache
def calls_of(solver: str) -> int:
    """Count the calls of a solve that nothing interrupts."""
    counted = Interrupt(inf)
    assert not solved(solver, problem_for(solver), counted).interrupted
    return counted.calls


@pytest.mark.sampled(6)
@pytest.mark.parametrize("solver", RECOMPUTING + OFFLOADING)
def test_a_search_that_is_interrupted_gives_its_best_so_far(solver: str) -> None:
    calls, problem = calls_of(solver), problem_for(solver)
    answers = list[SolverResult]()
    for at in sorted({2, calls // 3, 2 * calls // 3, calls}):
        try:
            answers.append(solved(solver, problem, Interrupt(at)))
        except KeyboardInterrupt:  # nothing was found before
            continue
    stopped = [answer for answer in answers if answer.interrupted]
    assert stopped
    for answer in stopped:
        found = simulate(problem.graph, answer.schedule, budget=problem.budget, machine=problem.machine)
        assert found.figures.peak <= problem.budget
        assert answer.status == (Status.HEURISTIC if solver in HEURISTIC else Status.FEASIBLE)


@pytest.mark.parametrize("solver", ["rotor", "rk-rotor", "search", "pofo", "lohan"])
def test_an_interrupt_before_anything_fits_proves_nothing(solver: str) -> None:
    """The budget is too small, so that nothing is found; still the interrupt says only that it came."""
    problem = replace(problem_for(solver), budget=problem_for(solver).budget // 10)
    with pytest.raises(InfeasibleError):
        solved(solver, problem, Interrupt(inf))
    with pytest.raises(KeyboardInterrupt):
        solved(solver, problem, Interrupt(1))
