"""A program solved through PuLP's objects, in a worker process (solve.py).

The only file that knows pulp and gurobipy. Reference: S. Mitchell, M. O'Sullivan, I. Dunning, PuLP: a linear
programming toolkit for Python, 2011.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from math import inf
from time import monotonic
from typing import Any

import numpy as np
import pulp

from ...graphs.errors import InputError, MissingPackageError
from ..workers.serve import Call
from .model import Program
from .result import BackendError, MilpStatus, Result, Settings, bound_below

_GUROBI = "GUROBI"
"""PuLP's name of Gurobi through gurobipy."""


def solve(
    call: Call, program: Program, settings: Settings, time_limit: float | None, start: Mapping[int, float]
) -> Result:
    """Solve a program. start: values of some columns."""
    del call  # a backend reports nothing, and can't be asked to stop
    solver = _solver(settings, time_limit, program.tolerance, bool(start))
    began = monotonic()
    problem = pulp.LpProblem("memplan", pulp.LpMinimize)
    kinds = (pulp.LpContinuous, pulp.LpInteger)
    bounds = zip(program.lower.tolist(), program.upper.tolist(), program.integer.tolist(), strict=True)
    variables = [
        pulp.LpVariable(f"x{index}", _finite(lower), _finite(upper), kinds[integer])
        for index, (lower, upper, integer) in enumerate(bounds)
    ]
    for column, value in start.items():
        variables[column].setInitialValue(value)
    cost = enumerate(program.cost.tolist())
    problem += pulp.LpAffineExpression({variables[column]: value for column, value in cost if value})
    _add_rows(problem, variables, program)
    if time_limit is not None:
        # Building PuLP's objects has taken a part of it.
        solver.timeLimit = max(1.0, time_limit - (monotonic() - began))
    try:
        problem.solve(solver)
    except pulp.PulpSolverError as error:
        raise BackendError(f"{settings.backend} failed: {_line(error)}") from None
    except Exception as error:
        if solver.name == _GUROBI:
            raise _gurobi_fault(error, program) from None
        raise
    status, bound = _standing(problem, solver.name, settings.gap)
    bound = bound_below(program, bound)
    if status not in (MilpStatus.OPTIMAL, MilpStatus.FEASIBLE):
        return Result(status, None, bound + program.offset, None)
    # Backends give no value to variables that occur in no row.
    at_rest = np.clip(0.0, program.lower, program.upper).tolist()
    x = [rest if v.varValue is None else v.varValue for v, rest in zip(variables, at_rest, strict=True)]
    return Result(status, None, bound + program.offset, np.array(x, np.float64))


def _solver(settings: Settings, time_limit: float | None, tolerance: float, has_start: bool) -> Any:
    """Return PuLP's solver object, with those of the settings that it takes."""
    names = {name.lower(): name for name in pulp.listSolvers()}
    if (name := names.get(settings.backend.lower())) is None:
        raise InputError(
            f"backend {settings.backend!r} is unknown: highs, gurobi, or one of {', '.join(names.values())}"
        )
    options: dict[str, Any] = {"threads": settings.threads}
    if name == _GUROBI:
        if find_spec("gurobipy") is None:
            raise MissingPackageError(
                "this needs gurobipy, which is not installed: pip install 'memplan[gurobi]'"
            )
        options = {"Seed": settings.seed, "Threads": settings.threads or 0, "warmStart": has_start}
        options |= {"FeasibilityTol": tolerance, "IntFeasTol": tolerance}
    options |= {"timeLimit": time_limit, "gapRel": settings.gap}
    # Each of PuLP's solvers takes other options: its signature says which.
    kind: Any = type(pulp.getSolver(name))
    takes = signature(kind.__init__).parameters
    solver = kind(msg=False, **{k: v for k, v in options.items() if k in takes or "solverParams" in takes})
    if name != _GUROBI and not solver.available():
        found = ", ".join(pulp.listSolvers(onlyAvailable=True))
        raise MissingPackageError(f"backend {name} is not installed here; PuLP finds {found}")
    return solver


def _add_rows(problem: Any, variables: list[Any], program: Program) -> None:
    start, columns, values = program.start.tolist(), program.columns.tolist(), program.values.tolist()
    limits = zip(program.row_lower.tolist(), program.row_upper.tolist(), strict=True)
    for row, (lower, upper) in enumerate(limits):
        entries = range(start[row], start[row + 1])
        terms = {variables[columns[entry]]: values[entry] for entry in entries}
        if lower == upper:
            senses = [(pulp.LpConstraintEQ, lower)]
        else:
            senses = [(pulp.LpConstraintGE, lower), (pulp.LpConstraintLE, upper)]
        for sense, limit in senses:
            if abs(limit) < inf:
                problem += pulp.LpConstraint(pulp.LpAffineExpression(terms), sense, rhs=limit)


def _standing(problem: Any, name: str, gap: float) -> tuple[MilpStatus, float]:
    """Return what the backend claims, and its bound without the program's offset."""
    if name == _GUROBI:
        model = problem.solverModel
        bound = max(model.ObjBound, -inf)
        if model.SolCount:
            return (MilpStatus.OPTIMAL if model.Status == 2 else MilpStatus.FEASIBLE), bound
        return (MilpStatus.INFEASIBLE if model.Status in (3, 4) else MilpStatus.UNKNOWN), bound
    if problem.status == pulp.LpStatusInfeasible:
        return MilpStatus.INFEASIBLE, inf
    if problem.sol_status == pulp.LpSolutionOptimal:
        objective = pulp.value(problem.objective) or 0.0
        # PuLP passes no bound on: within the gap is all that "optimal" says.
        return MilpStatus.OPTIMAL, objective - gap * abs(objective)
    found = problem.sol_status == pulp.LpSolutionIntegerFeasible
    return (MilpStatus.FEASIBLE if found else MilpStatus.UNKNOWN), -inf


def _gurobi_fault(error: Exception, program: Program) -> BackendError:
    """Return the error; a program that is too large for the licence is named as such.

    The licence that comes with `pip install gurobipy` takes 2,000 variables and 2,000 constraints.
    """
    number = getattr(error, "errno", None)
    if number == 10010:
        return BackendError(f"gurobi's licence does not take a model of {program.size}")
    if number == 10009:
        return BackendError(f"gurobi has no valid licence: {_line(error)}")
    return BackendError(f"gurobi failed: {_line(error)}")


def _finite(bound: float) -> float | None:
    return bound if abs(bound) < inf else None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
