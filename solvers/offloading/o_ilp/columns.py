"""The columns that all parts of O-ILP's program share, and how its rows are written: see model.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from ...milp.model import Model, Program
from .iteration import Iteration, Limits

Terms = list[tuple[int, float]]

NEAR = 24
"""Copies out end at most so many steps after the one that makes the data; copies back start at most so many
before the one that needs them. More makes the program larger and hardly ever better."""


@dataclass
class Loads:
    """Per step: what each resource carries, as terms (column, coefficient) in bytes or seconds."""

    device: list[Terms]
    host: list[Terms]
    d2h: list[Terms]
    h2d: list[Terms]
    cpu: list[Terms]
    compute: list[Terms]

    @staticmethod
    def of(steps: int) -> Loads:
        return Loads(*(list[Terms]([] for _ in range(steps)) for _ in range(6)))


@dataclass
class Columns:
    """The program while it is written. loads: what its parts have put on each resource so far.

    smallest_share: of r, 1 if the batch is given. whole: options are chosen, not mixed. rows: by equation.
    """

    iteration: Iteration
    limits: Limits
    smallest_share: float = 1.0
    whole: bool = True
    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))

    def __post_init__(self) -> None:
        steps = self.iteration.steps
        self.byte = max(1.0, self.limits.device_bytes / 16)
        self.second = max(1e-30, _plain_seconds(self.iteration) / steps)
        self.model, self._rows = Model(), 0
        self.loads = Loads.of(steps)
        largest = 1.0 / self.smallest_share
        self.share = self.model.column(self.smallest_share, largest)
        self.reserve = self.model.column(0.0, 0.0)
        self.time = [self.model.column(0.0, inf, cost=1.0) for _ in range(steps)]
        self.choice = [
            [self.model.column(integer=self.whole) for _ in options] for options in self.iteration.blocks
        ]
        for chosen in self.choice:
            self.row("4.1", [(c, 1.0) for c in chosen], 1.0, 1.0)

    def row(
        self, name: str, entries: Iterable[tuple[int, float]], lower: float = -inf, upper: float = inf
    ) -> None:
        """Add a row to the program. Entries of the same column are summed."""
        total: dict[int, float] = defaultdict(float)
        for column, value in entries:
            total[column] += value
        self.model.row(((c, v) for c, v in total.items() if v), lower, upper)
        self.rows[name].append(self._rows)
        self._rows += 1

    def column(self, upper: float = inf) -> int:
        return self.model.column(0.0, upper)

    def fetching(self, before: int) -> int:
        """Add and return a column: the amount copied back in a step so many before the one that needs it."""
        return self.column(inf if before <= NEAR else 0.0)

    def leaving(self, steps: int) -> list[int]:
        """Add and return columns: the amounts that have left before each of so many steps, from the
        producer's on.

        Steps beyond NEAR share the last column.
        """
        early = [self.column() for _ in range(min(steps, NEAR + 1))]
        return early + early[-1:] * (steps - len(early))

    def program(self) -> Program:
        return self.model.program()

    def after_computation(self, t: int, column: int, amount: float) -> None:
        """Count `amount` units that leave in step t after its computation (L_t)."""
        self.loads.compute[t].append((column, amount * self.byte / self.limits.d2h / self.second))


def _plain_seconds(iteration: Iteration) -> float:
    blocks = sum(options[0].forward_seconds + options[0].backward_seconds for options in iteration.blocks)
    return blocks + sum(group.device_seconds for group in iteration.groups) + sum(iteration.after_seconds)
