"""From the program to a schedule that holds: relax, round, solve again, make whole, place, simulate, repair.

    fractions ──round──▶ options and updates fixed ──▶ fractions of the rest ──Algorithm 8──▶ tensors away
        ▲                                                                                        │
        └────────── more of the device in reserve, where it doesn't fit or to be faster ◀── simulated

The relaxed program is solved by interior points, which spread a choice evenly over blocks that are alike.
Small programs are also solved with their integers, from the rounded answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import numpy as np

from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.residence import Residence
from ..planner.schedule import Schedule
from ..planner.sequence import in_plain_mode
from ..planner.simulate import Figures
from ..planner.transfers import judged, placed
from . import highs, milp
from .milp_model import Floats, Program
from .milp_result import Outcome
from .milp_result import Settings as MilpSettings
from .offmate_iteration import Iteration, Limits
from .offmate_model import OffloadProgram
from .offmate_round import Choice, choice_start, fixed, reserving, rounded
from .offmate_schedule import residence_of

RESERVES = (0.0, 0.05, 0.1, 0.2, 0.02, 0.3, 0.15, 0.4)
"""Parts of the device left to the places of whole tensors, in the order in which they are tried."""

SMALL = 4_000
"""Columns of programs that are also solved with their integers."""

CLOSE = 0.01
"""A schedule this much slower than the program with fractions is good enough."""

_TOLERANCE = 1e-4
"""By how much an answer with fractions may leave a row."""


@dataclass(frozen=True)
class Found:
    """planned: seconds of the program's answer. reserve: its part of the device. optimal: proven for it."""

    schedule: Schedule
    figures: Figures
    planned: float
    reserve: float
    optimal: bool


class Search:
    """best: the fastest schedule found. relaxation: the program with fractions, seconds; None: unknown."""

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        limits: Limits,
        settings: MilpSettings,
        integer_seconds: float,
        remaining: Callable[[], float],
        report: Callable[[str], None],
    ) -> None:
        self.graph, self.machine, self.limits, self.settings = graph, machine, limits, settings
        self.integer_seconds = integer_seconds
        self.remaining, self.report = remaining, report
        self.best: Found | None = None
        self.relaxation: float | None = None

    def try_plain(self) -> None:
        """The plain schedule, where it fits."""
        runs = in_plain_mode(range(len(self.graph.operations)))
        found = judged(self.graph, self.machine, self.limits.device_bytes, Residence(runs))
        if found is not None:
            self.best = Found(*found, found[1].time, 0.0, False)

    def run(self, iteration: Iteration) -> None:
        """Ends when no reserve is left, when what is found is close to the program's time, or time is up."""
        program = OffloadProgram(iteration, self.limits)
        self.relaxation = None
        choices: list[tuple[Choice, bool]] = []
        for reserve in RESERVES:
            started = monotonic()
            if self.remaining() <= 0.0:
                return
            self._try(program, reserve, choices)
            if self.best is not None and (self._is_close() or self.remaining() < monotonic() - started):
                return

    def _is_close(self) -> bool:
        assert self.best is not None
        return self.relaxation is not None and self.best.figures.time <= self.relaxation * (1 + CLOSE)

    def _try(self, program: OffloadProgram, reserve: float, choices: list[tuple[Choice, bool]]) -> None:
        budget = self.limits.device_bytes
        written = reserving(program, reserve * budget)
        answers = [self._with(program, written, choice, optimal) for choice, optimal in choices[:1]]
        answers = [answer for answer in answers if answer is not None]
        if not answers:
            for choice, optimal in self._choices(program, written):
                answer = self._with(program, written, choice, optimal and reserve == 0.0)
                if answer is not None:
                    choices[:] = [(choice, False)]
                    answers.append(answer)
        for choice, x, planned, optimal in answers:
            for residence, place in self._residences(program, choice, x):
                found = place(residence)
                if found is None:
                    continue
                schedule, figures = found
                if self.best is None or figures.time < self.best.figures.time:
                    self.best = Found(schedule, figures, planned, reserve, optimal)
                    self.report(
                        f"reserve {reserve:.0%}: {planned:.6g} s by the program, "
                        f"{figures.time:.6g} s simulated"
                    )

    def _choices(self, program: OffloadProgram, written: Program) -> Iterator[tuple[Choice, bool]]:
        """From the relaxed program, and from the program itself where it is small."""
        x = relaxed(written, self.remaining())
        if x is None:
            return
        if self.relaxation is None:
            self.relaxation = written.objective(x) * program.second
        choice = rounded(program, x)
        yield choice, False
        if len(written.cost) <= SMALL and self.remaining() > 0.0:
            result = milp.solve(
                written,
                self.settings,
                time_limit=min(self.remaining() / 4, self.integer_seconds),
                start=choice_start(program, choice),
            )
            if result.x is not None:
                yield rounded(program, result.x), result.outcome == Outcome.OPTIMAL
            if result.interrupted:
                raise KeyboardInterrupt

    def _with(
        self, program: OffloadProgram, written: Program, choice: Choice, optimal: bool
    ) -> tuple[Choice, Floats, float, bool] | None:
        chosen = fixed(program, written, choice)
        x = relaxed(chosen, self.remaining())
        return None if x is None else (choice, x, chosen.objective(x) * program.second, optimal)

    def _residences(
        self, program: OffloadProgram, choice: Choice, x: Floats
    ) -> Iterator[tuple[Residence, Callable[[Residence], tuple[Schedule, Figures] | None]]]:
        budget = self.limits.device_bytes
        free, stepped = residence_of(self.graph, program, choice, x)
        yield free, lambda each: placed(self.graph, self.machine, budget, each)
        yield stepped, lambda each: judged(self.graph, self.machine, budget, each)


def relaxed(written: Program, seconds: float) -> Floats | None:
    """An answer with fractions, None where there is none or it isn't found in time."""
    answer = highs.relax(written, seconds)
    if answer.interrupted:
        raise KeyboardInterrupt
    x = answer.x
    if x is None:
        return None
    x = np.clip(x, written.lower, written.upper)
    activity = written.activity(x)
    excess = np.maximum(written.row_lower - activity, activity - written.row_upper)
    return x if excess.max(initial=0.0) <= _TOLERANCE else None
