"""The columns that all parts of O-ILP's program share, and how its rows are written: see model.py."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf

from ...milp.linear import Constraint, Linear, total
from ...milp.model import Model, Program
from .iteration import Iteration, Limits

NEAR = 24
"""Copies out end at most so many steps after the one that makes the data; copies back start at most so many
before the one that needs them. More makes the program larger and hardly ever better."""


@dataclass
class Loads:
    """Per step: the loads of each resource, in bytes or seconds, whose sum it carries."""

    device: list[list[Linear]]
    host: list[list[Linear]]
    d2h: list[list[Linear]]
    h2d: list[list[Linear]]
    cpu: list[list[Linear]]
    compute: list[list[Linear]]

    @staticmethod
    def of(steps: int) -> Loads:
        return Loads(*(list[list[Linear]]([] for _ in range(steps)) for _ in range(6)))


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
        # Units in which bytes and seconds are near 1: the solver's tolerances are absolute.
        self.byte = max(1.0, self.limits.device_bytes / 16)
        self.second = max(1e-30, _baseline_seconds(self.iteration) / steps)
        self.model, self._rows = Model(), 0
        self.loads = Loads.of(steps)
        largest = 1.0 / self.smallest_share
        self.share = self.model.variable(self.smallest_share, largest)
        # Opened by `reserving`, which sets both of its bounds.
        self.reserve = self.model.variable(0.0, 0.0)
        self.time = [self.model.variable(0.0, inf, cost=1.0) for _ in range(steps)]
        self.choice = [
            [self.model.variable(integer=self.whole) for _ in options] for options in self.iteration.blocks
        ]
        for chosen in self.choice:
            self.add("4.1", total(chosen).equals(1.0))

    def add(self, name: str, constraint: Constraint) -> None:
        """Add a constraint to the program. name: its equation."""
        self.model.add(constraint)
        self.rows[name].append(self._rows)
        self._rows += 1

    def variable(self, upper: float = inf) -> Linear:
        return self.model.variable(0.0, upper)

    def fetching(self, before: int) -> Linear:
        """Add a variable: the amount copied back in a step so many before the one that needs it."""
        return self.variable(inf if before <= NEAR else 0.0)

    def leaving(self, steps: int) -> list[Linear]:
        """Add variables: the amounts that have left before each of so many steps, from the producer's on.

        Steps beyond NEAR share the last variable.
        """
        early = [self.variable() for _ in range(min(steps, NEAR + 1))]
        return early + early[-1:] * (steps - len(early))

    def program(self) -> Program:
        return self.model.program()

    def after_computation(self, t: int, variable: Linear, amount: float) -> None:
        """Count `amount` units that leave in step t after its computation (L_t)."""
        self.loads.compute[t].append(variable * (amount * self.byte / self.limits.d2h / self.second))


def _baseline_seconds(iteration: Iteration) -> float:
    blocks = sum(options[0].forward_seconds + options[0].backward_seconds for options in iteration.blocks)
    return blocks + sum(group.device_seconds for group in iteration.groups) + sum(iteration.after_seconds)
