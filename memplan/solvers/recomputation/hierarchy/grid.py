"""A cluster's options on a grid of budgets: pairs of a peak and of what is left at the loss (thesis, 2.6).

The budgets are evenly spaced, from the least peak that there is to what the cluster takes when nothing is
recomputed. The loosest comes first: if its answer also keeps a tighter pair of budgets, that pair need not be
searched, and if there is no answer, there is none for a tighter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....planner.schedule.sequence import Run
from ...clock import Clock
from ...milp.result import MilpStatus
from .option import Option, default_option, option_of
from .passes import Pass, bytes_of
from .piece import Piece

PROGRAM_SECONDS = 0.1
"""Seconds that a small program takes."""


@dataclass(frozen=True)
class Budgets:
    """Numbers of budgets to solve: `peaks` for the peak, each with `saves` for what is left at the loss.

    options: the most that all children together keep.
    gap: relative, at which a search may stop.
    """

    peaks: int = 3
    saves: int = 6
    options: int = 240
    gap: float = 0.01

    def within(self, seconds: float) -> Budgets:
        """Return fewer budgets if the time is short."""
        most = max(2, int(seconds / PROGRAM_SECONDS))
        saves = max(2, min(self.saves, most // self.peaks))
        return replace(self, peaks=max(1, min(self.peaks, most // saves)), saves=min(saves, self.saves))


@dataclass(frozen=True)
class Budget:
    peak: int
    save: int


@dataclass(frozen=True)
class _Answer:
    """The answer for one pair of budgets.

    budget: None for the smallest peak.
    """

    budget: Budget | None
    option: Option | None
    complete: bool
    peak: int = 0
    save: int = 0


Found = tuple[MilpStatus, tuple[Sequence[Run], Sequence[Run]] | None]
"""The runs up to the loss and those after it."""

Search = Callable[[Budget | None, float], Found]
"""The fastest runs within a pair of budgets; with none, those of the least peak. Seconds to spend."""


def options_on_grid(
    piece: Piece, budgets: Budgets, seconds: float, search: Search
) -> tuple[list[Option], bool]:
    """Find a cluster's options on the grid, as a level solver (hiremate/solve_levels.py).

    No option occurs twice; the baseline option is always among them.
    """
    baseline = default_option(piece)
    clock = Clock(seconds)
    # The least peak is where the grid begins, so it gets a quarter of the time whatever the grid's size.
    answers = [_answer(piece, None, search(None, seconds / 4))]
    fewer = budgets.within(seconds)
    grid = _grid(piece, baseline, answers[0].peak, fewer)
    for left, pair in zip(range(len(grid), 0, -1), grid, strict=True):
        if not _known(answers, pair):
            # Twice an equal share: many pairs are settled without a search, or early.
            share = 2 * max(0.0, clock.left) / left
            answers.append(_answer(piece, pair, search(pair, share)))
    found = [baseline, *(answer.option for answer in answers if answer.option is not None)]
    distinct = {(option.first.runs, option.backward.runs): option for option in found}
    return list(distinct.values()), fewer == budgets and all(answer.complete for answer in answers)


def _known(answers: Sequence[_Answer], budget: Budget) -> bool:
    """Tell whether a looser pair of budgets has an answer that keeps these, or has none."""
    return any(
        # A search cut short proves nothing about tighter budgets.
        answer.complete
        and (answer.option is None or (answer.peak <= budget.peak and answer.save <= budget.save))
        for answer in answers
        if answer.budget and answer.budget.peak >= budget.peak and answer.budget.save >= budget.save
    )


def _grid(piece: Piece, baseline: Option, low: int, budgets: Budgets) -> list[Budget]:
    high = max(_taken(piece, run) for run in (baseline.first, baseline.backward))
    save = _kept(piece, baseline)
    return [
        # `i` from 1 on: the least peak, `low`, has had its own search.
        Budget(low + (high - low) * i // budgets.peaks, save * j // budgets.saves)
        for i in range(budgets.peaks, 0, -1)
        for j in range(budgets.saves, 0, -1)
    ]


def _taken(piece: Piece, run: Pass) -> int:
    # Outputs count in the program's peak, not in the pass's own bytes.
    return max((step.bytes + bytes_of(piece, step.there) for step in run.steps), default=0)


def _kept(piece: Piece, option: Option) -> int:
    """Return the bytes of the cluster's own tensors that exist after the loss."""
    return option.saved + bytes_of(piece, (x for x in option.backward.reads if not piece.outside[x]))


def _answer(piece: Piece, budget: Budget | None, found: Found) -> _Answer:
    status, runs = found
    complete = status in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE)
    if runs is None:
        return _Answer(budget, None, complete)
    option = option_of(piece, *runs)
    peak = max(_taken(piece, run) for run in (option.first, option.backward))
    return _Answer(budget, option, complete, peak, _kept(piece, option))
