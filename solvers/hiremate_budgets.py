"""How many options are asked of a level solver, and how many it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budgets:
    """A grid: `peaks` budgets for the peak, each with `saves` budgets for what is left at the loss.

    options: the most options that all children together keep. gap: relative, where a search may stop.
    """

    peaks: int = 3
    saves: int = 4
    options: int = 60
    gap: float = 0.01
