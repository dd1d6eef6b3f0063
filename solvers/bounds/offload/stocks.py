"""The rows of an offloading program that say where the bytes of tensors are: (5), (6), (8), (9), `whole`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from .columns import ONE, OffloadColumns, plus, times


class StockRows:
    """Explained in program.py."""

    def __init__(self, columns: OffloadColumns) -> None:
        self.columns = columns
        for s in columns.windows:
            for x in columns.movable:
                self._persistent_rows(x, s)
            for x in columns.lives_in(s):
                self._transient_rows(x, s)
        if columns.whole:
            self._whole_tensors()

    def _persistent_rows(self, x: int, s: int) -> None:
        columns = self.columns
        following = (s + 1) % len(columns.windows)
        changed = bool(columns.changes_in(x, s))
        by_host = columns.changed_below(x, s)
        down, up = columns.column(columns.down[s], x), columns.column(columns.up[s], x)
        self.columns.at_least(columns.come(x, s), columns.is_there(x, following))  # (5)
        if by_host[1] or by_host[0]:
            self.columns.at_least(plus(up, ONE, times(-1.0, by_host)), columns.is_there(x, following))  # (9)
        self.columns.at_least(plus(columns.is_below(x, s), down, by_host), up)  # (6)
        self.columns.at_least(plus(columns.is_there(x, s), columns.is_below(x, s)), ONE)  # (8)
        if columns.changes[x]:
            kept = by_host if changed else columns.is_below(x, s)
            self.columns.at_least(plus(kept, down), columns.is_below(x, following))  # (6)
            if not changed:
                self.columns.at_least(columns.come(x, s), down)  # (6)

    def _transient_rows(self, x: int, s: int) -> None:
        columns = self.columns
        makers = columns.facts.producers[x]
        made = plus(*(columns.made_by(producer, s) for producer in makers))
        down, up = columns.column(columns.down[s], x), columns.column(columns.up[s], x)
        if x in columns.alive[s]:
            self._wanted(x, s)
        lies = plus(columns.is_below(x, s), down) if x in columns.alive[s] else down
        self.columns.at_least(lies, up)  # (6)
        self.columns.at_least(plus(columns.come(x, s), made), down)  # (6)
        if s + 1 < len(columns.windows) and x in columns.alive[s + 1]:
            self.columns.at_least(plus(columns.come(x, s), made), columns.is_there(x, s + 1))  # (5)
            if x in columns.below[s + 1]:
                self.columns.at_least(lies, columns.is_below(x, s + 1))  # (6)

    def _wanted(self, x: int, s: int) -> None:
        """(8), for each contribution to what a first run still needs, or to a result."""
        columns = self.columns
        if x not in columns.facts.results and max(columns.facts.uses[x], default=-1) < columns.edges[s]:
            return
        for producer in columns.facts.producers[x]:
            if producer < columns.edges[s]:
                later = [columns.column(columns.recomputed[k], producer) for k in columns.windows if k >= s]
                self.columns.at_least(plus(columns.is_there(x, s), columns.is_below(x, s), *later), ONE)

    def _whole_tensors(self) -> None:
        """The paper's (7) and (8)."""
        columns = self.columns
        for x in {x for moving in columns.up for x in moving}:
            uses = sorted({columns.window_of[o] for o in columns.facts.uses[x]})
            if not uses:
                continue
            absences = [range(a, b) for a, b in pairwise(uses)]
            if columns.persistent[x]:
                absences.append(range(uses[-1], uses[0] + len(columns.windows)))
            else:
                absences.append(range(columns.complete_in(x), uses[0]))
            for absence in absences:
                self._is_whole([columns.up[s % len(columns.windows)].get(x) for s in absence])
            if x not in columns.read_below and len(columns.changes.get(x, ())) < 2:
                self._is_whole([moving.get(x) for moving in columns.down])

    def _is_whole(self, parts: Iterable[int | None]) -> None:
        entries, model = [(column, 1.0) for column in parts if column is not None], self.columns.model
        if entries:
            model.row([*entries, (model.binary(), -1.0)], lower=0.0, upper=0.0)
