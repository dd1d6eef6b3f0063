"""The residency program: which operations must be recomputed, and which tensors stay, at chosen moments.

A *moment* t is the first run of an operation. For a set of moments, any set, with all variables 0 or 1:

    issue and papers   here            meaning
    d_o                reruns[o]       how often operation o is recomputed; with windows up to their number
    —                  recomputed      u_{o,t}: o runs after t, and not for the first time
    —                  before          b_{o,t}: the first run of o is before t; known in traced order
    r_{x,t}            kept            tensor x is on the device at t
    n_{x,t}            no variable     x is needed after t: the right side of (2) and (3)
    B                  limit           device bytes

    minimise Σ_o seconds_o · reruns_o                                          over all operations
    (1) recomputed_{o,t} ≤ reruns_o,  recomputed_{o,t} ≤ before_{o,t}
    (2) kept_{x,t} + recomputed_{p,t} ≥ before_{p,t} − before_{c,t}           p makes x, c reads it: or it is
                                                                             a result, then without before_c
    (3) kept_{x,t} + recomputed_{p,t} ≥ recomputed_{c,t}
    (4) Σ_x size_x · kept_{x,t} + what t's operation needs ≤ limit             x: all it does not touch
    (5) before_{c,t} ≤ before_{p,t} ≤ before_{p,t'}                            p must precede c, t precede t'

Why every schedule without transfers satisfies this: (2) p has made its contribution to x before t, and c runs
after t. Either that contribution is on the device at t, or p is recomputed in between. (3) is the same for a
later run of c; if c has run before, p has. (4) is all that counts at t. So no schedule costs less than all
operations once (in the fastest execution variant) and the program's optimum. Leaving out moments, solving it
in fractions, or only from the dual side (cuts.py) gives a bound that is lower, and as true.

If x has several contributions, there are (2) and (3) for each of them, but one kept, since they share an
allocation. An operation that may not be recomputed has no reruns; one that touches what an operation before t
has changed in place has no `recomputed`. If an execution variant writes less, only what all variants write
counts as made at t in (4). Windows, (6) to (8), are in windows.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...milp.linear import Linear, column_sum
from ...milp.model import Model, Program
from .facts import Facts
from .order import AFTER, BEFORE, OPEN, Moment


@dataclass(frozen=True)
class ResidencyProgram:
    """A written residency program, with the columns that say what is recomputed.

    reruns: operation -> column.
    within: for each window, the operation at whose moment it begins, and operation -> column.
    seconds: what cost 1 stands for.
    """

    program: Program
    reruns: dict[int, int]
    within: list[tuple[int, dict[int, int]]]
    seconds: float


class MomentColumns:
    """The columns and rows of one moment. reruns: operation -> column."""

    def __init__(self, facts: Facts, model: Model, reruns: dict[int, int], moment: Moment) -> None:
        self.facts, self.model, self.moment = facts, model, moment
        self.side = moment.side
        self.touched = facts.touched(moment.operation)
        self.before = {o: model.binary() for o, side in enumerate(self.side) if side == OPEN}
        self.may = facts.recomputable(moment)
        self.recomputed = {o: model.binary() for o, may in enumerate(self.may) if may}
        for operation, column in self.recomputed.items():  # (1)
            model.add(column_sum(reruns[operation]) >= column_sum(column))
            if operation in self.before:
                model.add(column_sum(self.before[operation]) >= column_sum(column))
        self.kept: dict[int, int] = {}

    def order(self, earlier: MomentColumns | None) -> None:
        """Write (5)."""
        for operation, column in self.before.items():
            for other in self.facts.predecessors[operation].tolist():
                if other in self.before:
                    self.model.add(column_sum(self.before[other]) >= column_sum(column))
        if earlier and self.side[earlier.moment.operation] == BEFORE:
            for operation in self.before.keys() & earlier.before.keys():
                now, then = self.before[operation], earlier.before[operation]
                self.model.add(column_sum(now) >= column_sum(then))

    def needs(self) -> None:
        """Write (2) and (3), for all that may be resident at the moment and needed after it."""
        facts = self.facts
        for operation, side in enumerate(self.side):
            if side == AFTER:
                continue
            made = self.first_run_is_before(operation)
            for x in facts.outputs[operation]:
                if x in self.touched or not facts.used_after(x, self.side, self.may):
                    continue
                if x not in self.kept:
                    self.kept[x] = self.model.binary()
                there = column_sum(self.kept[x], self.recomputed.get(operation))
                surely = x in facts.results or any(self.side[use] == AFTER for use in facts.uses[x])
                if surely:
                    self.model.add(there >= made)  # (2)
                for use in facts.uses[x]:
                    if not surely and use in self.before:
                        self.model.add(there >= made - column_sum(self.before[use]))  # (2)
                    if use in self.recomputed:
                        self.model.add(there >= column_sum(self.recomputed[use]))  # (3)

    def memory(self, limit: int) -> None:
        """Write (4), as fractions of the limit."""
        sizes = self.facts.sizes
        room = limit - self.facts.least_bytes(self.moment.operation)
        if sum(sizes[x] for x in self.kept) > room:
            held = Linear((column, sizes[x] / limit) for x, column in self.kept.items())
            self.model.add(held <= room / limit)

    def first_run_is_before(self, operation: int) -> Linear:
        if operation in self.before:
            return column_sum(self.before[operation])
        return Linear((), float(self.side[operation] == BEFORE))
