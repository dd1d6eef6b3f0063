"""Windows: recomputations counted separately between one moment and the next.

With single moments one more run of an operation serves all of them. Between moments t and t' that follow each
other in every order considered, the runs that are not first runs are counted (program.py explains the rest):

    here        meaning
    within      w_{o,t}: o runs between t and t', its first run being before t
    first       before_{o,t'} − before_{o,t}: it runs there for the first time

    (6) Σ_s within_{o,s} ≤ reruns_o
    (7) kept_{x,t} + first_{p,t} + within_{p,t} ≥ first_{c,t} + within_{c,t}        p makes x, c reads it
    (8) kept_{x,t} + Σ_p (first_{p,t} + within_{p,t}) ≥ kept_{x,t'}                  over all p that make x

    carried     c_{x,t}: x stays on the device from t to t'

    (9)  carried_{x,t} ≥ kept_{x,t'} − Σ_p (first_{p,t} + within_{p,t})
    (10) Σ_x size_x · carried_{x,t} + what o needs · within_{o,t} ≤ limit         x: all that o does not touch

    runs        first_{o,I} + within_{o,I}: o runs in the interval I, of one or more windows

    (11) runs_{o,J}, runs_{o,K} ≤ runs_{o,I} ≤ runs_{o,J} + runs_{o,K}                J and K make up I

(9) and (10) are written for chosen o and t only: the memory while o is recomputed. With `nested` all
intervals between moments have (7), (8) and (11). In whole numbers that says nothing new; in fractions half a
run in each of two windows is then not a whole one, and bounds rise. From a moment to the end within is
`recomputed`.
(7): if c runs between t and t', what p contributes to x was on the device at t or is made in between.
(8): what is on the device at t' was at t or is allocated in between. The last window ends with the iteration:
(7) for the results. What happens before the first moment is not counted. What t's operation touches is on the
device at t, and needs no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...milp.linear import ONE, Linear, column_sum, total
from ...milp.model import Model
from .facts import Facts
from .order import AFTER, BEFORE, Moment
from .program import MomentColumns, ResidencyProgram


def residency_program(
    facts: Facts,
    limit: int,
    moments: Sequence[Moment],
    windows: bool = False,
    crowded: Mapping[int, set[int]] | None = None,
    nested: bool = False,
) -> ResidencyProgram:
    """Write the residency program for some moments.

    limit: bytes, at least what each moment's operation needs.
    moments: in traced order.
    windows: also count recomputations between the moments.
    crowded: the operation at whose moment a window begins -> the operations for which (10) is written.
    nested: write (7), (8) and (11) for all intervals.
    """
    seconds = sum(facts.seconds) or 1.0
    chain = following(moments) if windows else []
    model = Model()
    reruns = {
        operation: model.column(
            upper=max(1, len(chain)), cost=facts.seconds[operation] / seconds, integer=True
        )
        for operation, once in enumerate(facts.once)
        if not once
    }
    columns: list[MomentColumns] = []
    for moment in moments:
        here = MomentColumns(facts, model, reruns, moment)
        here.order(columns[-1] if columns else None)
        here.needs()
        here.memory(limit)
        columns.append(here)
    within = _windows(
        model,
        reruns,
        chain=[columns[index] for index in chain],
        limit=limit,
        crowded=crowded or {},
        nested=nested,
    )
    return ResidencyProgram(model.program(), reruns, within, seconds)


def following(moments: Sequence[Moment]) -> list[int]:
    """Return the indices of the most moments that follow each other in every order considered."""
    length: list[int] = []
    last: list[int] = []
    for index, moment in enumerate(moments):
        # Longest chain: moment k surely comes before this one, in every order considered.
        before = [k for k in range(index) if moment.side[moments[k].operation] == BEFORE]
        best = max(before, key=length.__getitem__, default=-1)
        last.append(best)
        length.append(1 + (length[best] if before else 0))
    chain: list[int] = []
    at = max(range(len(moments)), key=length.__getitem__, default=-1)
    while at >= 0:
        chain.append(at)
        at = last[at]
    return chain[::-1]


def _windows(
    model: Model,
    reruns: dict[int, int],
    chain: Sequence[MomentColumns],
    limit: int,
    crowded: Mapping[int, set[int]],
    nested: bool,
) -> list[tuple[int, dict[int, int]]]:
    """Write the rows of all windows.

    Returns per window the operation at whose moment it begins, and operation -> column of `within`.
    """
    end = len(chain)
    parts: dict[tuple[int, int], _Window] = {}
    for i, here in enumerate(chain):
        for j in range(i + 1, end + 1):
            # Windows between neighbours, and from each moment to the end, where `recomputed` is the column.
            if nested or j in (i + 1, end):
                runs = here.recomputed if j == end else {o: model.binary() for o in here.recomputed}
                parts[i, j] = _Window(model, here, chain[j] if j < end else None, runs)
    for (i, j), part in parts.items():
        if j == i + 1:
            part.rows()
            part.memory(limit, crowded.get(part.here.moment.operation, set()) & part.within.keys())
            continue
        if nested and j < end:
            part.rows()
        # (11): the interval as a window and the rest.
        for cut in {i + 1, j - 1} if nested else {i + 1}:
            part.join(parts[i, cut], parts[cut, j])
    windows = [parts[i, i + 1] for i in range(end)]
    for operation, column in reruns.items():
        inside = column_sum(*(window.within.get(operation) for window in windows))
        if inside.terms:
            model.add(column_sum(column) >= inside)  # (6)
    return [(window.here.moment.operation, window.within) for window in windows]


class _Window:
    """A window from the moment `here` to `there`, or to the end; or an interval of several windows."""

    def __init__(
        self, model: Model, here: MomentColumns, there: MomentColumns | None, within: dict[int, int]
    ) -> None:
        self.model, self.facts = model, here.facts
        self.here, self.there, self.within = here, there, within

    def rows(self) -> None:
        for operation, inputs in enumerate(self.facts.inputs):
            ends, side = self.there is None or self.there.side[operation] != AFTER, self.here.side[operation]
            if ends and (side != BEFORE or operation in self.within):
                runs = self.runs(operation)
                for x in inputs:
                    for producer in self.facts.producers[x]:
                        self._row(x, [producer], runs)  # (7)
        if self.there is None:
            for x in self.facts.results:
                for producer in self.facts.producers[x]:
                    self._row(x, [producer], ONE)  # (7)
        else:
            for x, column in self.there.kept.items():
                self._row(x, self.facts.producers[x], column_sum(column))  # (8)

    def join(self, first: _Window, second: _Window) -> None:
        """Write (11) for an interval that two others make up."""
        for operation in self.within.keys() | second.within.keys():
            whole, start, end = (part.runs(operation) for part in (self, first, second))
            for constraint in (whole >= start, whole >= end, start + end >= whole):
                self.model.add(constraint, unless_implied=True)

    def memory(self, limit: int, operations: set[int]) -> None:
        """Write (9) and (10) for these operations, as fractions of the limit."""
        if not (self.there and operations):
            return
        facts, sizes = self.facts, self.facts.sizes
        last = facts.inputs[self.there.moment.operation]
        kept = dict.fromkeys(last, ONE)
        kept |= {x: column_sum(column) for x, column in self.there.kept.items()}
        carried: dict[int, int] = {}
        for x, there in kept.items():
            runs = total(self.runs(producer) for producer in facts.producers[x])
            if sizes[x] and runs.constant < 1.0:
                carried[x] = self.model.column()
                self.model.add(column_sum(carried[x]) + runs >= there, unless_implied=True)  # (9)
        for operation in sorted(operations):
            touched = facts.touched(operation)
            needs = (facts.least_bytes(operation) - facts.always) / limit
            held = Linear((column, sizes[x] / limit) for x, column in carried.items() if x not in touched)
            used = held + column_sum(self.within[operation]) * needs
            self.model.add(used <= (limit - facts.always) / limit)  # (10)

    def runs(self, operation: int) -> Linear:
        """Return the sum first + within."""
        before = self.there.first_run_is_before(operation) if self.there else ONE
        first = before - self.here.first_run_is_before(operation)
        return first + column_sum(self.within.get(operation))

    def _row(self, x: int, producers: Sequence[int], needed: Linear) -> None:
        """Write kept + Σ (first + within) of the producers ≥ needed, unless x is resident at the start."""
        if x in self.here.touched:
            return
        made = total(self.runs(producer) for producer in producers)
        self.model.add(made + column_sum(self.here.kept.get(x)) >= needed, unless_implied=True)
