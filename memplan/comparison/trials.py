"""Trials of a comparison of solvers, and the rows that result.

A trial is one graph, one budget and one solver. Its row quotes the simulator's figures only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from memplan.version import __version__

from ..graphs.files.files import graph_digest, load_graph
from ..graphs.graph import Graph
from ..planner.baseline import baseline
from ..planner.budget import Budget
from ..solvers.registry.run import chosen_settings, settings_of
from ..solvers.techniques import Technique


class Outcome(StrEnum):
    """End of a trial."""

    OK = "ok"
    """A schedule that the simulator accepts within the budget."""
    INFEASIBLE = "infeasible"
    """No schedule by this solver; `least_budget` is the smallest it can reach, if it reports one."""
    NOT_FOUND = "not-found"
    """The time limit came before a schedule, and before a proof that there is none."""
    NOT_ACCEPTED = "not-accepted"
    """The solver does not take graphs of this form or size."""
    TIMEOUT = "timeout"
    """The trial still ran long after its time limit, and was ended from outside."""
    FAULT = "fault"
    """A crash, or an answer that breaks a rule; `message` says which."""


@dataclass(frozen=True)
class Instance:
    """A graph to compare on.

    baseline_time: seconds of the baseline.
    baseline_peak, resident: bytes of its peak, and of what is resident throughout.
    """

    path: Path
    graph: str
    sha256: str
    operations: int
    tensors: int
    baseline_time: float
    baseline_peak: int
    resident: int

    def bytes_of(self, budget: Budget) -> int:
        return budget.bytes_of(self.baseline_peak, self.resident)


def instance(path: Path, graph: Graph | None = None) -> Instance:
    """Return a graph to compare on. Raises InputError.

    graph: the file's, if it has been read.
    """
    graph = graph or load_graph(path)
    reference = baseline(graph)
    return Instance(
        path=path.absolute(),
        graph=graph.name,
        sha256=graph_digest(graph),
        operations=len(graph.operations),
        tensors=len(graph.tensors),
        baseline_time=reference.time,
        baseline_peak=reference.peak,
        resident=graph.resident_bytes,
    )


class Contender(NamedTuple):
    """A solver with its settings. given: those requested; settings: all that result, as JSON."""

    solver: str
    given: Mapping[str, str]
    settings: str


def contender(solver: str, given: Mapping[str, str]) -> Contender:
    """Return the contender of a solver and settings. Raises InputError for an unknown solver or setting.

    This imports the solver. A solver that caches solutions on disk does not, unless a folder is requested:
    rows must take the time that they take alone.
    """
    if "cache" in settings_of(solver):
        given = {"cache": "off", **given}
    # sort_keys: equal settings are equal texts, by which rows are matched.
    return Contender(solver, given, json.dumps(chosen_settings(solver, given), sort_keys=True))


Place = tuple[str, int, str]
"""A problem: a graph's sha256, a budget in bytes, and the techniques that are allowed, empty for all. Solvers
compete on it, and bounds hold for it."""


class Key(NamedTuple):
    """Identity of a trial: two of the same key are the same trial. budget: bytes; time_limit: seconds."""

    sha256: str
    budget: int
    solver: str
    settings: str
    time_limit: float | None
    allow: str = ""


@dataclass(frozen=True)
class Trial:
    """A problem for a solver.

    kept: file for the schedule that is found, None to keep none. allow: techniques, None for all.
    """

    instance: Instance
    budget: Budget
    contender: Contender
    time_limit: float | None
    kept: Path | None = None
    allow: tuple[Technique, ...] | None = None

    @property
    def allowed(self) -> str:
        """The techniques in words, empty if all are allowed."""
        return "" if self.allow is None else ",".join(self.allow) or "nothing"

    @property
    def budget_bytes(self) -> int:
        return self.instance.bytes_of(self.budget)

    @property
    def key(self) -> Key:
        solver, _given, settings = self.contender
        sha256, limit = self.instance.sha256, self.time_limit
        return Key(sha256, self.budget_bytes, solver, settings, limit, allow=self.allowed)

    @property
    def place(self) -> Place:
        return self.instance.sha256, self.budget_bytes, self.allowed


def trials(
    instances: list[Instance],
    budgets: list[Budget],
    contenders: list[Contender],
    time_limit: float | None,
    allow: tuple[Technique, ...] | None = None,
) -> list[Trial]:
    """Return the trials graph by graph, budget by budget, without duplicates.

    allow: techniques, None for all.
    """
    combined = product(instances, budgets, contenders)
    # Two budgets may be as many bytes: one trial, named as the later of them.
    once = {trial.key: trial for trial in (Trial(*one, time_limit, allow=allow) for one in combined)}
    return list(once.values())


class Bounds(NamedTuple):
    """Lower bounds of a problem in seconds.

    lower: for any schedule.
    file_order: for schedules in traced order.
    backward_once: for schedules that run each backward operation once.
    """

    lower: float | None = None
    file_order: float | None = None
    backward_once: float | None = None

    def joined(self, other: Bounds) -> Bounds:
        """Return the larger of each bound; the others only if they are above the first."""
        pairs = zip(self, other, strict=True)
        lower, *others = (max((x for x in pair if x is not None), default=None) for pair in pairs)
        return Bounds(lower, *(None if (one or 0.0) <= (lower or 0.0) else one for one in others))


class Improvement(NamedTuple):
    """An improvement: after `seconds` of the solver there was a schedule that takes `time` seconds."""

    seconds: float
    time: float


@dataclass(frozen=True)
class Row:
    """A line of the comparison. Times in seconds, sizes in bytes; empty: not known, or no schedule.

    overhead_percent: extra time in percent of the baseline's.
    lower_bound: for any schedule within the budget.
    traced_order_bound: if larger, for schedules in traced order, which others may beat (inf: there is none).
    backward_once_bound: if larger, for schedules in any order that run no backward operation twice.
    gap_percent: (time − bound) in percent of the time; own_gap_percent: to what an exact solver has proven
        for its own formulation.
    nodes: of its search trees.
    budget_text: the budget as requested.
    settings: JSON.
    least_budget: of an infeasible trial.
    seed: among the settings, of solvers that have one.
    history: each schedule that was faster than all before.
    allow: techniques that schedules may use, empty for all.
    """

    graph: str
    operations: int
    tensors: int
    budget_text: str
    solver: str
    outcome: str
    overhead_percent: float | None
    gap_percent: float | None
    traced_order_gap_percent: float | None
    own_gap_percent: float | None
    nodes: int | None
    peak_percent_of_budget: float | None
    seconds: float
    status: str
    time: float | None
    peak: int | None
    lower_bound: float | None
    traced_order_bound: float | None
    backward_once_bound: float | None
    least_budget: int | None
    budget: int
    baseline_time: float
    baseline_peak: int
    time_limit: float | None
    settings: str
    message: str
    sha256: str
    memplan: str
    seed: int | None = None
    history: tuple[Improvement, ...] = ()
    allow: str = ""

    @property
    def key(self) -> Key:
        solver, settings, limit = self.solver, self.settings, self.time_limit
        return Key(self.sha256, self.budget, solver, settings, limit, allow=self.allow)

    @property
    def place(self) -> Place:
        return self.sha256, self.budget, self.allow

    @cached_property
    def contestant(self) -> tuple[str, str]:
        """The solver, and its settings without the seed, as JSON."""
        if self.seed is None:
            return self.solver, self.settings
        settings = {name: value for name, value in json.loads(self.settings).items() if name != "seed"}
        return self.solver, json.dumps(settings, sort_keys=True)

    @property
    def solved(self) -> bool:
        return self.outcome == Outcome.OK

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.lower_bound, self.traced_order_bound, self.backward_once_bound)


COLUMNS = tuple(field.name for field in fields(Row))


UNKNOWN = Bounds()


def row(trial: Trial, ending: Mapping[str, Any], known: Bounds = UNKNOWN) -> Row:
    """Return the row of a trial.

    ending: `outcome` and `seconds`, and those there are of time, peak, lower_bound, traced_order_bound,
        backward_once_bound, own_gap (a share of the time), nodes, status, least_budget, message and history.
    known: other bounds of the problem.
    """
    on, solver = trial.instance, trial.contender
    time, peak = ending.get("time"), ending.get("peak")
    own = (ending.get(name) for name in ("lower_bound", "traced_order_bound", "backward_once_bound"))
    bounds = Bounds(*own).joined(known)
    return Row(
        graph=_line(on.graph),
        operations=on.operations,
        tensors=on.tensors,
        budget_text=_line(trial.budget.text),
        solver=solver.solver,
        outcome=ending["outcome"],
        overhead_percent=None if time is None else _percent(time - on.baseline_time, on.baseline_time),
        gap_percent=gap(time, bounds.lower),
        traced_order_gap_percent=gap(time, bounds.file_order),
        own_gap_percent=None if ending.get("own_gap") is None else 100.0 * ending["own_gap"],
        nodes=ending.get("nodes"),
        peak_percent_of_budget=None if peak is None else _percent(peak, trial.budget_bytes),
        seconds=ending["seconds"],
        status=ending.get("status", ""),
        time=time,
        peak=peak,
        lower_bound=bounds.lower,
        traced_order_bound=bounds.file_order,
        backward_once_bound=bounds.backward_once,
        least_budget=ending.get("least_budget"),
        budget=trial.budget_bytes,
        baseline_time=on.baseline_time,
        baseline_peak=on.baseline_peak,
        time_limit=trial.time_limit,
        settings=solver.settings,
        message=_line(ending.get("message", "")),
        sha256=on.sha256,
        memplan=__version__,
        seed=seed if isinstance(seed := json.loads(solver.settings).get("seed"), int) else None,
        history=tuple(Improvement(*one) for one in ending.get("history", ())),
        allow=trial.allowed,
    )


def gap(time: float | None, bound: float | None) -> float | None:
    """Return the gap in percent of the time; below 0 if another order beats a bound for traced order."""
    return None if time is None or bound is None or bound == inf else _percent(time - bound, time)


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def _line(text: str) -> str:
    """Join the text to one line, so that a line of the file is a row."""
    return " ".join(text.split())
