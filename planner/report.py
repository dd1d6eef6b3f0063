"""A schedule's figures beside the plain schedule's, under the names of plan-schedule/1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .simulator.simulate import Figures


@dataclass(frozen=True)
class Report:
    """figures: the schedule's. baseline: the plain schedule's on a device of any size.

    lower_bound: seconds below which no schedule within the budget runs; None where none is known.
    """

    figures: Figures
    baseline: Figures
    lower_bound: float | None = None

    @property
    def overhead(self) -> float:
        """Extra time as a fraction of the plain schedule's."""
        return self.figures.time / self.baseline.time - 1 if self.baseline.time else 0.0

    @property
    def gap(self) -> float | None:
        """(time - lower bound) / time: 0 proves that nothing is faster. None without a bound."""
        if self.lower_bound is None:
            return None
        return (self.figures.time - self.lower_bound) / self.figures.time if self.figures.time else 0.0

    @property
    def above(self) -> float | None:
        """By how much of the fastest time there can be the schedule is above it, at most: of a gap of a half
        that is 1. None where no bound says so."""
        return self.figures.time / self.lower_bound - 1 if self.lower_bound else None

    def predicted(self) -> dict[str, Any]:
        """The `predicted` of plan-schedule/1: seconds and bytes."""
        return {
            "time": self.figures.time,
            "peak": self.figures.peak,
            "least_budget": self.figures.least_budget,
            "host_peak": self.figures.host_peak,
            "pinned_peak": self.figures.pinned_peak,
            "least_pinned": self.figures.least_pinned,
            "baseline_time": self.baseline.time,
            "baseline_peak": self.baseline.peak,
            "lower_bound": self.lower_bound,
        }
