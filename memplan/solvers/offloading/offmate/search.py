"""From the program to a schedule that holds: relax, round, re-solve, make whole, place, simulate, repair.

    fractions ──round──▶ options and updates fixed ──▶ fractions of the rest ──Algorithm 8──▶ tensors
    offloaded ▲                                                                                        │
        └────────── more of the device in reserve, where it doesn't fit or to be faster ◀── simulated

The relaxed program is solved by interior points, which spread a choice evenly over identical blocks.
Small programs are also solved with their integers, from the rounded answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np

from ....graphs.arrays import Floats
from ....graphs.graph import Graph
from ....graphs.machine import Machine
from ....planner.residency.prefetch_placement import place_prefetches, simulate_residency
from ....planner.residency.residency import Residency
from ....planner.schedule.schedule import Schedule
from ....planner.schedule.sequence import in_default_mode
from ....planner.simulator.simulate import Figures
from ...milp import safe_bounds as linear
from ...milp import solve as milp
from ...milp.model import Program
from ...milp.result import Settings as MilpSettings
from ...milp.write import write
from ..o_ilp.iteration import Iteration, Limits
from ..o_ilp.model import OIlpProgram
from ..o_ilp.round import IntegerSolution, choice_start, fixed, reserving, rounded
from .schedule import residency_of

RESERVES = (0.0, 0.05, 0.1, 0.2, 0.02, 0.3, 0.15, 0.4)
"""Shares of the device left free for rounding to whole tensors, in the order in which they are tried."""

COARSE_RESERVES = (0.0, 0.1)
"""Reserves of a program that only has to give a first answer."""

SMALL = 4_000
"""Columns of programs that are also solved with their integers."""

CLOSE = 0.01
"""A schedule this much slower than the program with fractions is good enough."""

PATIENCE = 2
"""Reserves in a row that may fit without anything better."""

_TOLERANCE = 1e-4
"""Violation of a row that an answer with fractions may have."""


@dataclass(frozen=True)
class OffmateResult:
    """A schedule, and where it comes from.

    planned: seconds of the program's answer. reserve: the share of the device that the program left free.
    """

    schedule: Schedule
    figures: Figures
    planned: float
    reserve: float


class _Answer(NamedTuple):
    """An answer of the program.

    planned: seconds by the program. x may be of the relaxed program, before the choice.
    """

    choice: IntegerSolution
    x: Floats
    planned: float


class OffmateSearch:
    """A search for the fastest schedule.

    best: the fastest schedule found. relaxation: seconds of the program with fractions; None: unknown.
    """

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
        self.best: OffmateResult | None = None
        self.relaxation: float | None = None

    def try_baseline(self) -> None:
        """Take the baseline if it fits."""
        runs = in_default_mode(range(len(self.graph.operations)))
        found = simulate_residency(self.graph, self.machine, self.limits.device_bytes, Residency(runs))
        if found is not None:
            self.best = OffmateResult(*found, found[1].time, 0.0)

    def run(self, iteration: Iteration, reserves: Sequence[float] = RESERVES) -> None:
        """Search with one reserve after the other.

        Ends when no reserve is left, when what is found is close to the program's time, or when time is
        up.
        """
        program = OIlpProgram(iteration, self.limits)
        self.relaxation = None
        choice: IntegerSolution | None = None
        in_vain = 0
        for reserve in reserves:
            started, before, fits = monotonic(), self.best, False
            if self.remaining() <= 0.0:
                return
            for answer in self._answers(
                program, reserving(program, reserve * self.limits.device_bytes), choice
            ):
                choice = answer.choice
                fits |= self._place(program, answer, reserve)
            if self.best is None:
                continue
            in_vain = 0 if self.best is not before else in_vain + fits
            if in_vain == PATIENCE or self._is_close() or self.remaining() < monotonic() - started:
                return

    def _is_close(self) -> bool:
        assert self.best is not None
        return self.relaxation is not None and self.best.figures.time <= self.relaxation * (1 + CLOSE)

    def _answers(
        self, program: OIlpProgram, written: Program, known: IntegerSolution | None
    ) -> Iterator[_Answer]:
        """Yield answers of the program.

        With the choice of the last reserve if that has an answer; else relaxed, rounded and re-solved, and
        with its integers too if the program is small.
        """
        if known is not None and (answer := self._with(program, written, known)):
            yield answer
            return
        if self.settings.write and len(written.cost) > SMALL:
            write(written, self.settings.write)  # else written when it is solved with its integers
        x = relaxed(written, self.remaining())
        if x is None:
            return
        seconds = written.objective(x) * program.second
        if self.relaxation is None:
            self.relaxation = seconds
        choice = rounded(program, x)
        yield _Answer(choice, x, seconds)
        if answer := self._with(program, written, choice):
            yield answer
        if len(written.cost) > SMALL or self.remaining() <= 0.0:
            return
        limit = min(self.remaining() / 4, self.integer_seconds)
        start = choice_start(program, choice)
        result = milp.solve(written, self.settings, time_limit=limit, start=start)
        if result.interrupted:
            raise KeyboardInterrupt
        if result.x is not None and (answer := self._with(program, written, rounded(program, result.x))):
            yield answer

    def _with(self, program: OIlpProgram, written: Program, choice: IntegerSolution) -> _Answer | None:
        chosen = fixed(program, written, choice)
        x = relaxed(chosen, self.remaining())
        return None if x is None else _Answer(choice, x, chosen.objective(x) * program.second)

    def _place(self, program: OIlpProgram, answer: _Answer, reserve: float) -> bool:
        """Simulate an answer with transfers placed operation by operation, and as in the program.

        Tell if one fits.
        """
        fits = False
        budget = self.limits.device_bytes
        free, stepped = residency_of(self.graph, program, answer.choice, answer.x)
        for found in (
            place_prefetches(self.graph, self.machine, budget, free),
            simulate_residency(self.graph, self.machine, budget, stepped),
        ):
            fits |= found is not None
            if found is not None and (self.best is None or found[1].time < self.best.figures.time):
                self.best = OffmateResult(*found, answer.planned, reserve)
                self.report(
                    f"{len(program.choice)} blocks, reserve {reserve:.0%}: {answer.planned:.6g} s by the "
                    f"program, {found[1].time:.6g} s simulated"
                )
        return fits


def relaxed(written: Program, seconds: float) -> Floats | None:
    """Solve the program with fractions; None if there is no answer or it is not found in time."""
    answer = linear.relaxed(written, seconds)
    if answer.interrupted:
        raise KeyboardInterrupt
    x = answer.x
    if x is None:
        return None
    x = np.clip(x, written.lower, written.upper)
    activity = written.activity(x)
    excess = np.maximum(written.row_lower - activity, activity - written.row_upper)
    return x if excess.max(initial=0.0) <= _TOLERANCE else None
