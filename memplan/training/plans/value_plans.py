"""Plans for other values of tensors that the code reads: what they have cost, and what they have saved.

Labels, lengths and picked rows may be others in every batch, and the plan of each is used once. Such plans
pay only if they are used several times, and are faster than eager PyTorch by more than planning takes.
"""

from __future__ import annotations

from weakref import WeakSet

from ...graphs.units import duration
from ...steps.execute import PlannedStep

ENOUGH = 3
"""Plans by values after which their cost is looked at."""


class ValuePlans:
    """The plans of a step that were made because a batch had other values, not another shape.

    count: how many were made. seconds: what making them took. uses: iterations that they have run.
    """

    def __init__(self) -> None:
        self.count, self.seconds, self.uses = 0, 0.0, 0
        # Weak: the plan cache decides how long a plan is kept.
        self._steps = WeakSet[PlannedStep]()

    def made(self, step: PlannedStep, seconds: float) -> None:
        self._steps.add(step)
        self.count += 1
        # The batch that it was made for runs by it too.
        self.uses += 1
        self.seconds += seconds

    def served(self, step: PlannedStep) -> None:
        """Note that a batch is one of a plan's that is there."""
        self.uses += step in self._steps

    def pays(self, saved: float) -> bool:
        """Tell whether plans by values have saved the time that they took.

        saved: seconds per iteration, compared with eager PyTorch.
        """
        return self.uses * saved >= self.seconds

    def __str__(self) -> str:
        return (
            f"{self.count} plans for other values took {duration(self.seconds)} and ran {self.uses} batches"
        )
