"""H-ILP on one cluster: an option for each pair of budgets, peak and saved at the loss (thesis, 2.6, 3.2.2).

The budgets are evenly spaced, from the least that could do to what the cluster takes when nothing runs again.
The loosest comes first: where its answer also keeps a tighter pair of budgets, that pair needs no program,
and where there is no answer, there is none for a tighter one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from ..planner.sequence import Run
from . import milp
from .h_ilp_graph import Child, Choice, HGraph, h_graph
from .h_ilp_model import h_program
from .h_ilp_stages import Slot
from .hiremate_budgets import Budgets
from .hiremate_option import Option, option_of, plain_option, select
from .hiremate_pass import Pass, bytes_of
from .hiremate_piece import Piece
from .milp_result import Outcome, Settings

Chosen = Mapping[Slot, Choice]


@dataclass(frozen=True)
class _Budget:
    peak: int
    save: int


@dataclass(frozen=True)
class _Answer:
    """budget: None for the least peak."""

    budget: _Budget | None
    option: Option | None
    complete: bool
    peak: int = 0
    save: int = 0


def options_of(
    piece: Piece, children: Sequence[Child], budgets: Budgets, seconds: float
) -> tuple[list[Option], bool]:
    """A level solver (hiremate_levels.py). No option twice; the plain one is always among them."""
    graph = h_graph(piece, selected(children, budgets.options))
    plain = plain_option(piece)
    deadline = monotonic() + seconds
    answers = [_solve(piece, graph, None, budgets.gap, seconds / 4)]
    fewer = budgets.within(seconds)
    grid = _grid(piece, plain, answers[0].peak, fewer)
    for left, pair in zip(range(len(grid), 0, -1), grid, strict=True):
        if not _known(answers, pair):
            share = 2 * (deadline - monotonic()) / left
            answers.append(_solve(piece, graph, pair, budgets.gap, max(share, 0.0)))
    found = [plain, *(answer.option for answer in answers if answer.option is not None)]
    distinct = {(option.first.runs, option.backward.runs): option for option in found}
    return list(distinct.values()), fewer == budgets and all(answer.complete for answer in answers)


def selected(children: Sequence[Child], most: int) -> list[Child]:
    """At most `most` options in all, each child its share and at least one (thesis, 3.4.5, where N_k = min is
    to be max)."""
    total = sum(len(child.options) for child in children)
    return [
        replace(child, options=tuple(select(child.options, max(1, most * len(child.options) // total))))
        if child.options and total > most
        else child
        for child in children
    ]


def _known(answers: Sequence[_Answer], budget: _Budget) -> bool:
    """A looser pair of budgets has an answer that keeps these, or has none."""
    return any(
        answer.complete
        and (answer.option is None or (answer.peak <= budget.peak and answer.save <= budget.save))
        for answer in answers
        if answer.budget and answer.budget.peak >= budget.peak and answer.budget.save >= budget.save
    )


def _grid(piece: Piece, plain: Option, low: int, budgets: Budgets) -> list[_Budget]:
    high = max(_taken(piece, run) for run in (plain.first, plain.backward))
    save = _kept(piece, plain)
    return [
        _Budget(low + (high - low) * i // budgets.peaks, save * j // budgets.saves)
        for i in range(budgets.peaks, 0, -1)
        for j in range(budgets.saves, 0, -1)
    ]


def _taken(piece: Piece, run: Pass) -> int:
    return max((step.bytes + bytes_of(piece, step.there) for step in run.steps), default=0)


def _kept(piece: Piece, option: Option) -> int:
    """Bytes of the piece's own that are there behind the loss."""
    return option.saved + bytes_of(piece, (x for x in option.backward.reads if not piece.outside[x]))


def _solve(piece: Piece, graph: HGraph, budget: _Budget | None, gap: float, seconds: float) -> _Answer:
    if budget:
        program = h_program(graph, budget.peak, budget.save)
    else:
        program = h_program(graph, sum(piece.sizes), least=True)
    result = milp.solve(program.program, Settings(gap=gap, threads=1), time_limit=seconds)
    complete = result.outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE)
    if result.x is None:
        return _Answer(budget, None, complete)
    option = option_of(piece, *runs_of(graph, program.chosen(result.x)))
    if budget and not complete:
        return _Answer(budget, option, complete, budget.peak, budget.save)
    peak = max(_taken(piece, run) for run in (option.first, option.backward))
    return _Answer(budget, option, complete, peak, _kept(piece, option))


def runs_of(graph: HGraph, chosen: Chosen) -> tuple[list[Run], list[Run]]:
    """The runs until the loss has run, and those behind it."""
    forward: list[Run] = []
    backward: list[Run] = []
    for (stage, _k), choice in chosen.items():
        (forward if stage <= graph.loss else backward).extend(choice.run.runs)
    return forward, backward
