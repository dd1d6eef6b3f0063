"""A solver at work on a portfolio's problem: what workers.py calls in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import time

from ..incumbent import Incumbent
from ..problem import Options, Problem, SolverResult
from ..registry.catalogue import entry, module_of
from ..settings import parse_settings
from ..skipped import collecting
from ..workers.serve import Call


# A worker solves one problem many times: unpickling it is paid once.
@cache
def _problem(path: str) -> Problem:
    with Path(path).open("rb") as file:
        return pickle.load(file)


def solve(
    call: Call, problem: str, solver: str, settings: Mapping[str, str], end: float, by_default: bool
) -> SolverResult:
    """Solve. The seconds of each schedule that is found are reported as an event.

    problem: path of the pickled problem. settings: as text. end: moment of `time` at which the time is over;
    by_default: nobody has asked for it.
    """
    known = _problem(problem)
    module = module_of(entry(solver))
    chosen = parse_settings(solver, module.Settings, settings)
    race = Incumbent()
    race.listen = lambda standing: call.report(standing.best)
    # `end` is of `time`, not `monotonic`, whose zero another process need not share.
    options = Options(max(0.0, end - time()), chosen, race=race, by_default=by_default)
    with collecting() as skipped, call.interruptible():
        answer: SolverResult = module.solve(known, options)
    return replace(answer, notes=(*answer.notes, *skipped))
