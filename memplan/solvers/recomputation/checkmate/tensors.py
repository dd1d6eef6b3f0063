"""One tensor in Checkmate's program: its columns at the current slot, and the rows that lead to the next.

The equations' numbers, and what they say, are in model.py. For a tensor with several producers:

    (5) new ≥ made − held                     a contribution takes bytes if nothing is allocated
    (6) new ≥ made + there − 1                or if its share is there already: it is recomputed and dropped
    (7) held ≥ needed,  there after ≥ (there before, or made) + held − 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...milp.linear import ZERO, column_sum
from ...milp.model import Model
from ...stages.slots import Slot


@dataclass
class TensorColumns:
    """Columns of the program for one tensor; None stands for 0.

    size: in thousandths of the capacity.
    until: the last use.
    last: producer -> its last stage.
    held: it is allocated.
    needed: per producer, its contribution is in the tensor, for a use to come.
    there: per producer that may be recomputed, its contribution is in the allocation, needed or not.
    """

    size: float
    until: Slot
    last: Mapping[int, int]
    needed: dict[int, int | None]
    there: dict[int, int | None]
    held: int | None = None

    @staticmethod
    def at_first(size: float, until: Slot, last: Mapping[int, int]) -> TensorColumns:
        return TensorColumns(size, until, last, dict.fromkeys(last), dict.fromkeys(last))

    def require(self, model: Model, runs: list[int], at_least: float = 0.0) -> None:
        """Require that the tensor is complete if one of `runs` is 1: needed − runs ≥ at_least."""
        least = column_sum(*runs) + at_least
        for column in self.needed.values():
            model.add(column_sum(column) >= least)

    def new_bytes(self, model: Model, producer: int, made: list[int]) -> list[int]:
        """Return columns whose sum says how often the size is allocated anew by the runs `made`."""
        there = self.there[producer]
        if len(self.last) == 1 or self.held is None:
            return made
        new = model.column()
        model.add(column_sum(new, self.held) >= column_sum(*made))  # (5)
        if there is not None:
            model.add(column_sum(new) >= column_sum(*made, there) - 1.0)  # (6)
        return [new]

    def pass_slot(self, model: Model, slot: Slot, made: list[int]) -> None:
        """Move on from before the slot to after it.

        made: the runs in the slot that make the tensor; none: it is read.
        """
        for producer, old in self.needed.items():
            making = made if producer == slot[1] else []
            if slot >= self.until or (old is None and not making):
                self.needed[producer] = None
                continue
            self.needed[producer] = new = model.binary()
            before = column_sum(old, *making)
            model.add(before >= column_sum(new))  # (2)
            if old is not None and making:
                model.add(before <= 1.0)  # (3)
        if slot >= self.until:
            self.held = None
        elif len(self.last) == 1:
            (self.held,) = self.needed.values()
        else:
            self._allocate(model, slot, made)

    def _allocate(self, model: Model, slot: Slot, made: list[int]) -> None:
        """Write (7)."""
        self.held = held = model.binary()
        for column in self.needed.values():
            if column is not None:
                model.add(column_sum(held) >= column_sum(column))
        for producer, old in self.there.items():
            sources = [column_sum(old), column_sum(*made) if producer == slot[1] else ZERO]
            sources = [source for source in sources if source.terms]
            may_run_again = slot < (self.last[producer], producer)
            self.there[producer] = new = model.column() if sources and may_run_again else None
            if new is not None:
                for source in sources:
                    model.add(column_sum(new) >= source + column_sum(held) - 1.0)
