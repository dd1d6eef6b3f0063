"""Steps that accumulate gradients: each batch adds its gradients to their sums, the last one also updates.

The sums are states of the optimizer, moved and saved as others are (updates/sums.py). The plan of a
shape has two parts, which share weights and states with it (training/plans/plan.py, `Parts`):

    adding    adding    the plan    adding    …    updating     at an epoch's end: what is left
    └───────── one update ────────┘

With several processes each adds up its own batches. All average the sums when they update, at the same batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...graphs.errors import MismatchError
from ...model.accumulated import accumulated
from ...model.iteration import Inputs
from ...steps.execute import IterationResult, PlannedStep
from ...torch_support.interrupts import deferred_signals
from ..plans.report import Report
from .step import Step


class AccumulatingStep(Step):
    """A Step with planned updates and gradient_accumulation_steps above 1."""

    _states: Mapping[Any, int] | None = None
    """States of the plan of the update's first batch; None before one."""

    @property
    def optimizer_stepped(self) -> bool:
        return self._waiting == 0

    def update(self) -> None:
        with self._alone, deferred_signals():
            if self._waiting:
                plan = self.plans[0]
                updating = self._planner.parts[plan].updating
                with updating.together(begins=False):
                    plan.grad_norm = updating.iterate(()).grad_norm

    def restore_to_device(self) -> None:
        super().restore_to_device()
        for plan in self.plans:
            parts = self._planner.parts[plan]
            parts.adding.restore_to_device()
            parts.updating.restore_to_device()

    def report(self) -> Report:
        """Return the figures, for each shape those of an update's last batch, then of those before it."""
        parts = [x for plan in self.plans for x in (plan, self._planner.parts[plan].adding)]
        return self._book.report(parts, self._planner)

    @property
    def _waiting(self) -> int:
        """Number of batches whose gradients are in the sums, not yet applied."""
        assert self._own is not None
        now = accumulated(self._own)
        return 0 if now is None else now.batches

    @property
    def _begins(self) -> bool:
        return self._waiting == 0

    def _iterate(self, inputs: Inputs, plan: PlannedStep) -> IterationResult:
        states, waiting = plan.program.states, self._waiting
        if not waiting or self._states is None:
            self._states = states
        elif self._states is not states and self._states.keys() != states.keys():
            raise MismatchError(
                "other parameters require a gradient than in the earlier batches of this update: freeze and "
                "unfreeze between updates, after step.update()"
            )
        last = waiting + 1 == self._iteration.accumulate
        part = plan if last else self._planner.parts[plan].adding
        outcome = super()._iterate(inputs, part)
        plan.output, plan.grad_norm = part.output, part.grad_norm
        if part is not plan:
            part.output = None
        return outcome
