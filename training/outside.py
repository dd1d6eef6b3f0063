"""Optimizers that no plan has: any of `torch.optim.Optimizer` that needs no closure.

The step runs the planned forward and backward, then the optimizer's own step over all gradients. What it
takes is counted before anything is planned (runtime/updates/counted.py): the plan has what its states leave
of the budget, and what its step takes for itself must fit beside weights and gradients alone.

    ┌── planned forward and backward ──┐┌─ optimizer.step() ─┐
    │ weights, activations, gradients  ││ weights, gradients │
    ├──────────────────────────────────┤├────────────────────┤
    │ states                           ││ states, its own    │
    └──────────────────────────────────┘└────────────────────┘
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..graphs.errors import InputError
from ..runtime.compare.peaks import resident_bytes
from ..runtime.model.clipping import Clipping
from ..runtime.model.iteration import Iteration
from ..runtime.program.program import Program
from ..runtime.refusals import warn_user
from ..runtime.run.execute import PlannedStep
from ..runtime.run.interrupts import interrupts_at_the_end
from ..runtime.storage.away import bring_back
from ..runtime.updates.counted import counted
from ..solvers.problem import InfeasibleError, NotFoundError
from .buckets import Buckets
from .loss import Losses
from .plan import Planner
from .step import Step


class OutsideStep(Step):
    """As any step with an optimizer: weights are updated and gradients gone when it returns."""

    def __init__(
        self,
        iteration: Iteration,
        planner: Planner,
        most: int,
        buckets: Buckets | None,
        optimizer: Optimizer,
        clipping: Clipping | None = None,
    ) -> None:
        """iteration: without updates. Raises MemplanError."""
        if planner.undo:
            raise InputError(
                f"undo=True is for planned updates: {type(optimizer).__name__} steps behind the plan"
            )
        bring_back(iteration.module.parameters())
        trained = {name: p for name, p in iteration.module.named_parameters() if p.requires_grad}
        self._taken = counted(optimizer, trained)
        self._outside, self._planner = optimizer, planner
        planner.beside = self._taken.states
        super().__init__(iteration, self._planned, most, buckets, planner)
        self._own, self._clipping, self._losses = optimizer, clipping, Losses(updates=True)
        kind, states = type(optimizer).__name__, self._taken.states
        warn_user(
            f"{kind} is not in the plan: its states take {states:,} bytes of the budget of "
            f"{self._budget(self.plans[0]):,} all the time; AdamW, Adam and SGD would be planned"
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """The loss. An iteration that fails leaves no gradients."""
        try:
            loss = super().__call__(*arguments, **keywords)
            with interrupts_at_the_end():
                if self._clipping is not None:
                    parameters, most = self._iteration.module.parameters(), self._clipping.max_norm
                    self.plans[0].norm = nn.utils.clip_grad_norm_(parameters, most)
                self._outside.step()
        finally:
            self._outside.zero_grad(set_to_none=True)
        return loss

    def _planned(self, iteration: Iteration, less: int = 0) -> PlannedStep:
        """Raises InfeasibleError, …: its bytes are the whole budget's."""
        states = self._taken.states
        try:
            step = self._planner(iteration, less)
        except NotFoundError as error:
            found = None if error.found is None else error.found + states
            raise NotFoundError(error.solver, error.budget + states, error.floor + states, found) from None
        except InfeasibleError as error:
            least = None if error.least is None else error.least + states
            raise InfeasibleError(error.solver, error.budget + states, least, error.floor + states) from None
        if not iteration.trains:
            return step
        needed, budget = _left_bytes(step.program) + self._taken.peak, self._budget(step)
        if needed > budget:
            raise InfeasibleError(f"the step of {type(self._outside).__name__}", budget, needed, needed)
        return step

    def _budget(self, step: PlannedStep) -> int:
        return (step.budget or 0) + self._taken.states


def _left_bytes(program: Program) -> int:
    """There when an iteration has ended: weights, buffers, inputs, gradients, the loss."""
    return resident_bytes(program) + sum(program.storages[x].bytes for x in program.results)
