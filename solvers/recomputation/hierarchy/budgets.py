"""How many options are asked of a level solver, and how many it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

PROGRAM_SECONDS = 0.1
"""What a small program takes."""


@dataclass(frozen=True)
class Budgets:
    """A grid: `peaks` budgets for the peak, each with `saves` budgets for what is left at the loss.

    options: the most options that all children together keep. gap: relative, where a search may stop.
    """

    peaks: int = 3
    saves: int = 6
    options: int = 240
    gap: float = 0.01

    def within(self, seconds: float) -> Budgets:
        """Fewer budgets where the time is short."""
        most = max(2, int(seconds / PROGRAM_SECONDS))
        saves = max(2, min(self.saves, most // self.peaks))
        return replace(self, peaks=max(1, min(self.peaks, most // saves)), saves=min(saves, self.saves))
