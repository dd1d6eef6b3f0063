"""Rk-Checkmate on a whole graph: the fastest schedule in traced order within M_peak and M_save.

The program, the paper's symbols and reference are in rk_model.py; rockmate solves it for each block. With
M_save at M_peak its optimum is that of `checkmate`, whose program makes no difference between forward and
backward; so its assumptions, its size and its claims are the same: `optimal` among the schedules in stages.
Read checkmate.py first.

M_peak is the budget without what is resident from the start. M_save is `save` times as much: what exists
while the loss runs, besides what the loss writes. Backends round: if the replayed bytes are above a limit,
the program is solved once more with the excess cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....graphs.errors import InputError
from ....graphs.graph import Graph, Phase
from ....planner.schedule.sequence import Run, runs_of
from ...candidates import Candidate
from ...milp.result import Settings as MilpSettings
from ...problem import InfeasibleError, Options, Problem, SolverResult
from ...settings import setting
from ...stages.scan import bytes_of, scan
from .checkmate import MOST_ENTRIES, CheckmateSearch
from .model import StagedProgram
from .rk_model import rk_checkmate_program

NAME = "rk-checkmate"


@dataclass(frozen=True)
class Settings(MilpSettings):
    """Settings of rk-checkmate, after those of its MILP backend."""

    save: float = setting(1.0, "M_save as a share of M_peak; 1: no limit of its own", least=0, most=1)


def solve(problem: Problem, options: Options) -> SolverResult:
    """Solve the problem. Ctrl-C during the search ends it: the answer is the best so far."""
    settings = options.chosen(Settings)
    return _RkCheckmateSearch(problem, options, settings.save).answer()


class _RkCheckmateSearch(CheckmateSearch):
    """The search with a second limit, at the loss.

    saved: M_save in bytes, None if it does not limit anything.
    allowed: the bytes of it that the program may use.
    """

    def __init__(self, problem: Problem, options: Options, save: float) -> None:
        super().__init__(NAME, problem, options)
        losses = (self.graph.operations.phase == Phase.LOSS).nonzero()[0].tolist()
        if save < 1 and not losses:
            raise InputError(f"save limits what is kept at the loss; {self.graph.name} has no loss")
        self.loss: int = losses[0] if losses else -1
        self.saved = self.allowed = int(save * self.capacity) if save < 1 else None
        self.form = "" if self.saved is None else f"at most {self.saved:,} B kept at the loss"

    def program(self, capacity: int, *, least: bool = False) -> StagedProgram:
        return rk_checkmate_program(
            self.graph, capacity, self.allowed, least=least, most_entries=MOST_ENTRIES
        )

    def fits(self, candidate: Candidate) -> bool:
        return super().fits(candidate) and self._above(candidate) <= 0

    def cut(self, candidate: Candidate, attempt: int) -> None:
        super().cut(candidate, attempt)
        if self.allowed is not None:
            # Twice as much at each attempt: the backend's rounding error is unknown.
            self.allowed -= max(0, self._above(candidate)) << attempt

    def infeasible(self) -> InfeasibleError:
        """Return the error, without a smallest budget if M_save is a limit: it grows with the budget."""
        if self.saved is None:
            return super().infeasible()
        return InfeasibleError(NAME, self.limit, None, self.min_memory)

    def _above(self, candidate: Candidate) -> int:
        """Return the bytes kept at the loss above M_save."""
        if self.saved is None:
            return 0
        return saved_bytes(self.graph, runs_of(candidate.schedule), self.loss) - self.saved


def saved_bytes(graph: Graph, runs: Sequence[Run], loss: int) -> int:
    """Return the bytes that exist while the loss runs, without its outputs and what is always resident."""
    at = next(position for position, (operation, _mode) in enumerate(runs) if operation == loss)
    resident = frozenset(graph.resident.nonzero()[0].tolist())
    results = {x: graph.whole_contributions[x] for x in graph.results}
    operations = frozenset(range(len(graph.operations)))
    # What must exist before the loss is what it and all later runs need, and results made by then.
    return bytes_of(graph, scan(graph, runs[at:], results, resident, operations).needed)
