"""A schedule's figures compared with the baseline's, under the names of plan-schedule/1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..graphs.graph import Graph
from ..graphs.units import duration
from .baseline import baseline
from .simulator.simulate import Figures


def optimality_gap(seconds: float, lower_bound: float) -> float:
    """Return (seconds - lower bound) / seconds: 0 proves that nothing is faster."""
    return (seconds - lower_bound) / seconds if seconds else 0.0


def compared(graph: Graph, seconds: float) -> str:
    """Return a schedule's time and the baseline's, as all lines about it have it: `57.6 ms, +26.4% vs.
    baseline`."""
    figures = baseline(graph)
    over = Report(replace(figures, time=seconds), figures).overhead
    return f"{duration(seconds)}, {over:+z.1%} vs. baseline"


@dataclass(frozen=True)
class Report:
    """The figures of a schedule and of the baseline.

    figures: the schedule's. baseline: the baseline's, on a device of any size.
    lower_bound: seconds below which no schedule within the budget runs; None if none is known.
    bound_by: the program whose word that is, which nothing checks; empty if it is memplan's arithmetic.
    """

    figures: Figures
    baseline: Figures
    lower_bound: float | None = None
    bound_by: str = ""

    @property
    def overhead(self) -> float:
        """Return the extra time as a fraction of the baseline's."""
        return self.figures.time / self.baseline.time - 1 if self.baseline.time else 0.0

    @property
    def gap(self) -> float | None:
        """Return the optimality gap (`optimality_gap`). None without a bound."""
        return None if self.lower_bound is None else optimality_gap(self.figures.time, self.lower_bound)

    @property
    def above(self) -> float | None:
        """Return by how much, at most, the schedule is slower than the fastest possible, relative to that.

        It is 1 for a gap of a half. None without a bound.
        """
        return self.figures.time / self.lower_bound - 1 if self.lower_bound else None

    def predicted(self) -> dict[str, Any]:
        """Return the `predicted` of plan-schedule/1: seconds and bytes."""
        return {
            "time": self.figures.time,
            "peak": self.figures.peak,
            "least_budget": self.figures.least_budget,
            "host_peak": self.figures.host_peak,
            "disk_peak": self.figures.disk_peak,
            "pinned_peak": self.figures.pinned_peak,
            "least_pinned": self.figures.least_pinned,
            "baseline_time": self.baseline.time,
            "baseline_peak": self.baseline.peak,
            "lower_bound": self.lower_bound,
        }
