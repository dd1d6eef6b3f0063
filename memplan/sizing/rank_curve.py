"""Time against memory on each rank: FSDP2's policies and plans within less and less memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .policies import Policies
from .result import CurvePoint
from .trial import BatchTrial, Known

_POINTS = 5
"""Points of the curve."""


@dataclass(frozen=True)
class RankCurve:
    """The curve of one batch.

    policies, known: those of the search. constant: bytes that cuBLAS keeps. solved: returns what the solver
    finds within a budget of planned bytes.
    """

    policies: Policies
    known: Known
    constant: int
    solved: Callable[[int], BatchTrial]

    def points(self, batch: int, most: int, least: int) -> list[CurvePoint]:
        """Return the fastest known within budgets from `most` down towards `least` bytes."""
        budgets = [int(most * (least / most) ** (number / _POINTS)) for number in range(_POINTS)]
        # What is found within less memory is known to the searches within more.
        points = [self._point(batch, budget) for budget in reversed(budgets)]
        return points[::-1]

    def _point(self, batch: int, budget: int) -> CurvePoint:
        policies = self.policies.with_tuned(batch, budget - self.constant, self.known)
        fastest = next((row for row in policies if row.seconds is not None), None)
        plan = self.solved(budget)
        return CurvePoint(
            budget + self.constant,
            fastest and fastest.name,
            fastest and fastest.seconds,
            plan.seconds,
            plan.figures and plan.figures.host_peak,
        )
