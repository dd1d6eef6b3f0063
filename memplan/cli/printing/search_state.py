"""The state of a search in words: the best schedule, the bound, and how much of the time is over."""

from __future__ import annotations

from math import inf

from ...graphs.graph import Graph
from ...graphs.units import duration
from ...planner.report import compared
from ...solvers.incumbent import Incumbent


class SearchState:
    """The state at each moment: `str` gives it. The best is compared with the baseline as the result is."""

    def __init__(self, graph: Graph, race: Incumbent) -> None:
        self._graph, self._race = graph, race

    def __str__(self) -> str:
        race, clock, parts = self._race, self._race.clock, list[str]()
        if race.best < inf:
            parts.append(f"best {compared(self._graph, race.best)}")
        if race.bound > 0.0:
            parts.append(f"bound {duration(race.bound)}")
        if race.history and race.history[-1].gap < inf:
            parts.append(f"gap {race.history[-1].gap:z.2%}")
        # Infinite without a limit.
        if clock is not None and 0.0 < clock.left < inf:
            over = min(1.0, clock.share)
            parts.append(f"{over:.0%} of the time is over, {duration(clock.left)} left at most")
        return ", ".join(parts)
