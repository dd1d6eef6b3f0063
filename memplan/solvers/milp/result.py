"""Settings and results of MILP solvers; each answer is checked against the program."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from math import inf
from pathlib import Path

import numpy as np

from ...graphs.arrays import Floats
from ...graphs.errors import InputError, MissingPackageError
from ..settings import SolverSettings, gap_setting, seed_setting, setting, workers_setting
from .model import Program

FILES = (".mps", ".lp")
"""Suffixes of files that `write` can write."""

TOLERANCE = 1e-5
"""Largest violation of a row, over its terms, a bound or an integer in an answer; backends promise 1e-6."""


DISCARDED = 1e-6
"""Largest improvement that backends discard as none."""

REDUCED = 1e-7
"""Distance below 0 at which a reduced cost may count as 0: at least HiGHS' and Gurobi's dual tolerance."""

LONGEST_RANGE = 1e3
"""Longest range of a variable that counts for REDUCED.

The few longer ones are bytes or seconds, which rows bind.
"""

ROUNDED = 2.0**-50


class BackendError(MissingPackageError):
    """An installed MILP solver that can't be used: it crashed, hung, or gave a wrong answer."""


@dataclass(frozen=True)
class Settings(SolverSettings):
    """Settings of a MILP backend."""

    backend: str = setting("highs", "highs, gurobi, or PuLP's name of a solver (PULP_CBC_CMD, SCIP_CMD, …)")
    threads: int | None = workers_setting(None, "threads of the backend; empty: it chooses", least=1)
    gap: float = gap_setting(1e-6, "relative gap at which the search may stop")
    seed: int = seed_setting("seed of the search, if the backend takes one")
    write: str = setting(
        "",
        "a file, .mps or .lp, for each program that is solved; empty: none",
        check=lambda path: check_path(path),
    )

    def of_backend(self) -> Settings:
        """Return these settings alone, without those that a solver adds in its own class."""
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})


class MilpStatus(Enum):
    OPTIMAL = "optimal"
    """proven within the requested gap"""
    FEASIBLE = "feasible"
    """the best found when a limit or an interruption stopped the search"""
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    """stopped with nothing found"""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a MILP solver.

    objective, x: None if no solution is known.
    bound: no solution is below it (−∞: none known).
    interrupted: Ctrl-C stopped the search.
    nodes: of the search tree, None if the backend does not report them.
    """

    status: MilpStatus
    objective: float | None
    bound: float
    x: Floats | None
    interrupted: bool = False
    nodes: int | None = None


@dataclass(frozen=True)
class Progress:
    """Progress of a search.

    incumbent: the best objective so far, ∞ before the first.
    """

    incumbent: float
    bound: float
    seconds: float

    @property
    def gap(self) -> float:
        """Relative optimality gap: (incumbent − bound) / incumbent."""
        if inf in (self.incumbent, -self.bound):
            return inf
        return (self.incumbent - self.bound) / max(abs(self.incumbent), 1e-12)

    @property
    def gap_text(self) -> str:
        """The gap as a share; '-' if the bound proves nothing."""
        return f"{self.gap:z.2%}" if self.gap < 1.0 else "-"

    def line(self, unit: float) -> str:
        """Return a line for the user.

        unit: the seconds that 1 in the objective stands for.
        """
        bound, elapsed = f"bound {self.bound * unit:.6g} s", f"{self.seconds:.0f} s elapsed"
        if self.incumbent == inf:
            return f"no incumbent yet, {bound}, {elapsed}"
        return f"incumbent {self.incumbent * unit:.6g} s, {bound}, gap {self.gap_text}, {elapsed}"


def bound_below(program: Program, bound: float) -> float:
    """Return the backend's bound on a program with integers, less what its tolerances may hide.

    The backend discards what improves on the best answer by less than its feasibility tolerance, and takes
    reduced costs above −1e-7 for 0, each over its variable's range; floats round the costs themselves.
    `scaled` has made the costs so large that this is next to nothing.
    """
    if not len(program.cost):
        return bound  # nothing was searched
    ranges = np.minimum(program.upper - program.lower, LONGEST_RANGE)
    hidden = 2.0 * max(program.tolerance, DISCARDED) + REDUCED * float(ranges.sum())
    return bound - hidden - ROUNDED * float(np.abs(program.cost).sum())


def checked(program: Program, result: Result, backend: str) -> Result:
    """Return the result with its integers rounded and its objective computed here.

    Raises BackendError if the answer breaks the program that it claims to solve.
    """
    if result.x is None:
        return result
    # First: what follows takes one finite value a column for granted.
    if len(result.x) != len(program.cost) or not np.isfinite(result.x).all():
        raise BackendError(f"{backend} gave no value for some of {program.size}")
    x = np.where(program.integer, np.round(result.x), result.x)
    if (worst := _largest(np.abs(x - result.x))) > TOLERANCE:
        raise BackendError(f"{backend} gave a fractional answer: an integer is off by {worst:.2g}")
    if (worst := _largest(np.maximum(program.lower - x, x - program.upper))) > TOLERANCE:
        raise BackendError(f"{backend} gave a wrong answer: a variable is outside its bounds by {worst:.2g}")
    activity = program.activity(x)
    # A row of large terms that cancel is exact only relative to these.
    terms = replace(program, values=np.abs(program.values)).activity(np.abs(x))
    scale = np.maximum(1.0, terms)
    excess = np.maximum(program.row_lower - activity, activity - program.row_upper) / scale
    if (worst := _largest(excess)) > TOLERANCE:
        raise BackendError(f"{backend} gave a wrong answer: a constraint is violated by {worst:.2g}")
    objective = program.objective(x)
    if result.objective is not None and result.objective < objective - TOLERANCE * max(1.0, abs(objective)):
        raise BackendError(
            f"{backend} gave a wrong answer: it says {result.objective:.9g} and it costs {objective:.9g}"
        )
    if result.bound > objective + TOLERANCE * max(1.0, abs(objective)):
        raise BackendError(f"{backend} claims the bound {result.bound:.9g} above its answer {objective:.9g}")
    # Within the tolerance checked above a bound may exceed the answer's cost.
    return replace(result, objective=objective, bound=min(result.bound, objective), x=x)


def _largest(values: Floats) -> float:
    return float(values.max(initial=0.0))


def check_path(path: str) -> None:
    """Raise InputError if no program can be written there; empty: none is to be."""
    if not path:
        return
    if Path(path).suffix not in FILES:
        raise InputError(f"write must end with {' or '.join(FILES)}, not {path!r}")
    if not Path(path).parent.is_dir():
        raise InputError(f"write: {Path(path).parent}: no such folder")
