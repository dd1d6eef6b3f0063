"""Which batches of a step update the weights, and by which optimizer.

Each batch updates them by its plan, or the loop does so. Or a plan adds up the gradients of several batches:
each adds its gradients to their sums, the last one also updates. The sums are states of the optimizer, moved
and saved as others are (updates/sums.py). The plan of a shape then has two parts, which share weights and
states with it (training/plans/plan.py, `Parts`):

    adding    adding    the plan    adding    …    updating     at an epoch's end: what is left
    └───────── one update ────────┘

With several processes each adds up its own batches. All average the sums when they update, at the same batch.

An optimizer whose updates can't be planned has unplanned_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.optim import Optimizer

from ...graphs.errors import MismatchError
from ...model.accumulated import accumulated
from ...model.clipping import Clipping
from ...model.iteration import Iteration
from ...planner.device_memory import DeviceMemory
from ...steps.execute import PlannedStep
from ..plans.loop_memory import Count, LoopMemory
from ..plans.plan import Parts


class Updating:
    """Updates of each batch by its plan, or by the loop.

    optimizer: the step's own; None if the loop has one.
    clipping: of the gradients; None if the step clips none.
    """

    optimizer: Optimizer | None = None
    clipping: Clipping | None = None

    def __init__(self, iteration: Iteration) -> None:
        if iteration.updates is not None:
            self.optimizer, self.clipping = iteration.updates.optimizer, iteration.updates.clipping

    @property
    def count(self) -> Count | None:
        """Count of what updates take outside of plans; None for that of the loop, if there is any."""
        return None

    @property
    def waiting(self) -> int:
        """Number of batches whose gradients were added up, and are not applied yet."""
        return 0

    def planned(self, outside: LoopMemory, limit: DeviceMemory) -> None:
        """Say what the first plan leaves to the optimizer.

        outside: what the plans have no room for. limit: the budget.
        """

    def part(self, plan: PlannedStep, parts: Parts | None) -> PlannedStep:
        """Return the part of the plan that runs the next batch. Raises MismatchError."""
        return plan

    def batch(self, plans: list[PlannedStep]) -> AbstractContextManager[None]:
        """Surround a batch, whose update may follow its plan. plans: that of the batch is the first."""
        return nullcontext()

    def update(self, plan: PlannedStep, parts: Parts | None) -> None:
        """Update the weights with the gradients that wait. plan: the one used last."""


class Accumulating(Updating):
    """Planned updates, each of several batches."""

    def __init__(self, iteration: Iteration) -> None:
        super().__init__(iteration)
        self._batches = iteration.accumulate
        self._states: Mapping[Any, int] | None = None  # of the plan of the update's first batch

    @property
    def waiting(self) -> int:
        assert self.optimizer is not None
        now = accumulated(self.optimizer)
        return 0 if now is None else now.batches

    def part(self, plan: PlannedStep, parts: Parts | None) -> PlannedStep:
        assert parts is not None
        states, waiting = plan.program.states, self.waiting
        if not waiting or self._states is None:
            self._states = states
        # `is` first: most batches of an update run by one plan.
        elif self._states is not states and self._states.keys() != states.keys():
            raise MismatchError(
                "other parameters require a gradient than in the earlier batches of this update: freeze and "
                "unfreeze between updates, after step.update()"
            )
        return plan if waiting + 1 == self._batches else parts.adding

    def update(self, plan: PlannedStep, parts: Parts | None) -> None:
        if self.waiting:
            assert parts is not None
            with parts.updating.together(begins=False):
                plan.grad_norm = parts.updating.iterate(()).grad_norm
