"""Rows of an offloading program that say where the bytes of tensors are: (5), (6), (8), (9), `whole`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ...milp.linear import ONE, ZERO, column_sum, total
from ..residency.order import AFTER, BEFORE
from .columns import OffloadColumns


class StockRows:
    """Writer of rows (5), (6), (8), (9) and `whole`, which program.py explains."""

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
        changes = columns.changes_in(x, s)
        by_host = columns.changed_below(x, s)
        down, up = columns.column(columns.down[s], x), columns.column(columns.up[s], x)
        columns.require(columns.come(x, s) >= columns.is_there(x, following))  # (5)
        columns.require(columns.is_below(x, s) + by_host >= up)  # (6)
        columns.require(columns.is_there(x, s) + columns.is_below(x, s) >= ONE)  # (8)
        for change in changes:
            self._changed(x, s, change)
        if columns.changes[x] and not any(columns.iteration.known(change) for change in changes):
            below = columns.is_below(x, following)
            columns.require(columns.is_below(x, s) + down + by_host >= below)  # (6)
            columns.require(columns.come(x, s) >= down)  # (6)
        self._waited_for(x, s)

    def _changed(self, x: int, s: int, change: int) -> None:
        """Write (6) and (9) for a change that may happen in window s, and maybe in windows before."""
        columns, following = self.columns, (s + 1) % len(self.columns.windows)
        for inside in columns.spans(change, s):
            down = [columns.column(columns.down[k], x) for k in inside]
            up = [columns.column(columns.up[k], x) for k in inside]
            by_host = total(columns.changed_below(x, k) for k in inside)
            unchanged = columns.not_first(change, inside)
            columns.require(total([by_host, *down, unchanged]) >= columns.is_below(x, following))  # (6)
            here = columns.numbers(change, lambda variant: x in variant.host)
            if here:
                others = columns.not_first(change, inside, here)
                columns.require(total([*up, others]) >= columns.is_there(x, following))  # (9)

    def _waited_for(self, x: int, s: int) -> None:
        """Write (8) for first runs that use x on the device, maybe in window s, maybe in a later one."""
        columns = self.columns
        come = columns.is_there(x, s) + columns.column(columns.returns[s], x)
        for use in {*columns.facts.uses[x]}:
            windows = [k for k in columns.iteration.of[use] if k >= s]
            if s in windows and len(windows) > 1:
                numbers = columns.numbers(use, lambda variant: x in variant.device)
                needed = [columns.first(use, k, numbers) for k in windows]
                columns.require(come >= total(needed))

    def _transient_rows(self, x: int, s: int) -> None:
        columns = self.columns
        producers = columns.facts.producers[x]
        made = total(columns.made_by(producer, s) for producer in producers)
        down, up = columns.column(columns.down[s], x), columns.column(columns.up[s], x)
        if x in columns.alive[s]:
            self._wanted(x, s)
        below = columns.is_below(x, s) if x in columns.alive[s] else ZERO
        columns.require(below >= up)  # (6)
        columns.require(columns.come(x, s) + made >= down)  # (6)
        if s + 1 < len(columns.windows) and x in columns.alive[s + 1] and x not in columns.begun[s + 1]:
            columns.require(columns.come(x, s) + made >= columns.is_there(x, s + 1))  # (5)
            if x in columns.below[s + 1]:
                columns.require(below + down >= columns.is_below(x, s + 1))  # (6)

    def _wanted(self, x: int, s: int) -> None:
        """Write (8) for each contribution to what a first run still needs, a later run, or a result.

        In the last window (7) and P ≤ h say the same of what runs on the device.
        """
        columns, side = self.columns, self.columns.iteration.sides[s]
        there, back = columns.is_there(x, s), columns.column(columns.returns[s], x)
        lies = there + columns.is_below(x, s)
        comes = there + back
        uses = {use for use in columns.facts.uses[x] if side[use] != BEFORE}
        direct = {
            use
            for use in columns.facts.uses[x]
            if all(x in variant.device for variant in columns.variants[use])
        }
        last = s + 1 == len(columns.windows)
        surely = x in columns.facts.results or any(side[use] == AFTER for use in uses)
        said = last and any(side[use] == AFTER for use in direct)
        for producer in columns.facts.producers[x]:
            if side[producer] == AFTER:
                continue
            reruns, made = columns.column(columns.reruns[s], producer), columns.before(producer, s)
            if surely and not said:
                columns.require(lies + reruns >= made)
            for use in uses:
                less = columns.before(use, s)
                if not surely and not (last and use in direct):
                    columns.require(lies + reruns + less >= made)
                if use in direct and not (last or columns.iteration.known(use)):
                    columns.require(comes + reruns + less >= made)
            for use in columns.facts.uses[x]:
                repeated = columns.column(columns.reruns[s], use)
                if not (last and use in direct):
                    columns.require(lies + reruns >= repeated)
                if use in direct and not last:
                    columns.require(comes + reruns >= repeated)

    def _whole_tensors(self) -> None:
        """Write the paper's (7) and (8)."""
        columns = self.columns
        for x in {x for moving in columns.up for x in moving}:
            uses = sorted({columns.iteration.of[o][0] for o in columns.facts.uses[x]})
            if not uses:
                continue
            intervals = [range(a, b) for a, b in pairwise(uses)]
            if columns.persistent[x]:
                intervals.append(range(uses[-1], uses[0] + len(columns.windows)))
            else:
                intervals.append(range(columns.complete_in(x), uses[0]))
            for interval in intervals:
                self._is_whole([columns.up[s % len(columns.windows)].get(x) for s in interval])
            if x not in columns.read_below and len(columns.changes.get(x, ())) < 2:
                self._is_whole([moving.get(x) for moving in columns.down])

    def _is_whole(self, parts: Iterable[int | None]) -> None:
        all_parts, model = column_sum(*parts), self.columns.model
        if all_parts.terms:
            model.add(all_parts.equals(column_sum(model.binary())))
