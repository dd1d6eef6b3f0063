"""Any solver of the catalogue on a cluster: a direct solver, in the words of the thesis (3.2.2).

The cluster is a separate training graph, of single operations: children with options are taken apart. Each
pair of budgets is a problem with a peak. What may be kept at the loss is expressed as workspace of the loss,
which takes what the peak has beyond that and the outputs that only others read. What comes from outside is
resident all the time and free. The levels above rely on first runs in traced order, so all operations are
marked as random, whose first runs keep it. A solver that does not take the cluster has no options for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ....graphs.errors import InputError
from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.bounds import minimum_memory
from ....planner.schedule.sequence import runs_of
from ...candidates import Candidate, device_limit
from ...milp.result import MilpStatus
from ...problem import InfeasibleError, NotAcceptedError, NotFoundError, Problem, Status, ValidatedSolution
from ...registry import run as registry
from ..hierarchy.grid import Budget, Budgets, Found, options_on_grid
from ..hierarchy.option import Option, default_option, forward_outputs
from ..hierarchy.passes import bytes_of
from ..hierarchy.piece import Piece
from .rk_checkmate import cluster_graph, halves

ALONE = Machine()
"""A device without links, of any size."""


def solvers_named(text: str) -> tuple[str, ...]:
    """Parse names with commas between them, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def check(name: str) -> None:
    """Raise InputError if there is no such solver, or it can't solve a cluster."""
    if registry.entry(name).needs_links:
        raise InputError(
            f"{name} moves tensors, in a cluster things are only recomputed: name another solver"
        )
    if name == "hiremate":
        raise InputError("hiremate is no solver of its own clusters: name those that it would use")


def options_of(name: str, piece: Piece, budgets: Budgets, seconds: float) -> tuple[list[Option], bool]:
    """Find a cluster's options with a solver of the catalogue, as a level solver (solve_levels.py).

    name: of the catalogue's solver.
    """
    cluster = cluster_graph(piece)
    operations = cluster.graph.operations
    # First runs of random operations keep the traced order.
    ordered = replace(cluster.graph, operations=replace(operations, random=np.ones(len(operations), bool)))
    inputs = ordered.resident_bytes
    passing = bytes_of(piece, forward_outputs(piece) - default_option(piece).backward.reads)

    def search(budget: Budget | None, seconds: float) -> Found:
        if budget is None:
            status, solution = _least(name, ordered, seconds)
        else:
            # As workspace of the loss, what may not be kept is taken from the peak while it runs.
            beyond = max(0, budget.peak - budget.save - passing)
            asked = _with_workspace(ordered, cluster.turn, beyond)
            status, solution = _solved(name, asked, budget.peak + inputs, seconds)
        return status, None if solution is None else halves(piece, cluster, runs_of(solution.schedule))

    return options_on_grid(piece, budgets, seconds, search)


def whole(
    problem: Problem, names: Sequence[str], seconds: float, report: Callable[[str], None]
) -> tuple[list[Candidate], bool]:
    """Solve the whole graph without links with each of these solvers; also tell whether the user ended it.

    A solver that finds nothing is left out. If the user ended it, the last candidate is the interrupted
    solver's best so far.

    seconds: for each solver.
    """
    alone = Problem(problem.graph, device_limit(problem), ALONE)
    found: list[Candidate] = []
    for name in names:
        with suppress(InfeasibleError, NotAcceptedError):
            solution = registry.solve(name, alone, seconds, bound_seconds=0.0)
            found.append(Candidate(solution.schedule, solution.figures.time, solution.figures.peak))
            report(f"{name}, the whole graph: {solution.figures.time:.6g} s")
            if solution.interrupted:
                return found, True
    return found, False


Solved = tuple[MilpStatus, ValidatedSolution | None]


def _solved(name: str, graph: Graph, limit: int, seconds: float) -> Solved:
    try:
        solution = registry.solve(name, Problem(graph, limit, ALONE), seconds, bound_seconds=0.0)
    except NotFoundError:
        return MilpStatus.UNKNOWN, None
    except (InfeasibleError, NotAcceptedError):
        return MilpStatus.INFEASIBLE, None
    if solution.interrupted:
        raise KeyboardInterrupt
    cut_short = solution.status is Status.FEASIBLE
    # A heuristic's answer counts as final: more seconds would not change it.
    return MilpStatus.FEASIBLE if cut_short else MilpStatus.OPTIMAL, solution


def _least(name: str, graph: Graph, seconds: float) -> Solved:
    """Return the schedule of the smallest budget that the solver names when it is given less."""
    min_memory = minimum_memory(graph, ALONE)
    try:
        solution = registry.solve(name, Problem(graph, min_memory, ALONE), seconds / 2, bound_seconds=0.0)
    except NotAcceptedError:
        return MilpStatus.INFEASIBLE, None
    except InfeasibleError as refusal:
        found = refusal.found if isinstance(refusal, NotFoundError) else refusal.least
        return (MilpStatus.UNKNOWN, None) if found is None else _solved(name, graph, found, seconds / 2)
    return MilpStatus.OPTIMAL, solution


def _with_workspace(graph: Graph, operation: int, workspace: int) -> Graph:
    workspaces = graph.operations.workspace.copy()
    workspaces[operation] = workspace
    return replace(graph, operations=replace(graph.operations, workspace=workspaces))
