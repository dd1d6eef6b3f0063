"""Steps with an optimizer whose updates can't be planned: any `torch.optim.Optimizer` without a closure.

The step runs the planned forward and backward, then the optimizer's own step over all gradients. What it
takes is counted before anything is planned, and is outside of the plan (loop_memory.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn
from torch.optim import Optimizer

from ...devices.storage.offloaded import bring_back
from ...graphs.errors import DifferenceError, InputError
from ...model.iteration import Inputs, Iteration
from ...steps.execute import PlannedStep
from ...torch_support.interrupts import deferred_signals
from ...torch_support.unsupported import warn_user
from ...updates.catalogue import titles
from ...updates.optimizer_memory import counted
from ..plans.buckets import Buckets
from ..plans.loop_memory import LoopMemory, gradient_bytes
from ..plans.plan import Planner
from .loss import Losses
from .step import Step


class OutsideStep(Step):
    """A Step whose optimizer runs after the plan.

    Weights are updated and gradients freed when a call returns.
    """

    def __init__(
        self, iteration: Iteration, planner: Planner, buckets: Buckets | None, optimizer: Optimizer
    ) -> None:
        """Plan the iteration, which has no updates: `accumulate` of them make one update.

        Raises MemplanError.
        """
        if planner.options.rollback_on_error:
            raise InputError(
                "rollback_on_error=True needs planned updates: "
                f"{type(optimizer).__name__} steps after the plan"
            )
        bring_back(iteration.module.parameters())
        self._outside = optimizer
        self._waiting = 0
        super().__init__(
            iteration, planner, buckets, outside=partial(_taken, optimizer, iteration.accumulate)
        )
        kind, outside = type(optimizer).__name__, planner.outside
        self._own, self._losses = optimizer, Losses(updates=True)
        self._clipping = planner.options.max_grad_norm
        held = "its states" if iteration.accumulate == 1 else "its states and the sums of gradients"
        warn_user(
            f"{kind} is not in the plan: {held} take {outside.bytes:,} bytes all the time of the budget of "
            f"{self.plan.limit}; {titles('and')} would be planned"
        )

    @property
    def optimizer_stepped(self) -> bool:
        return self._waiting == 0 and super().optimizer_stepped

    def update(self) -> None:
        with self._alone, deferred_signals():
            try:
                if self._waiting:
                    self._step()
            finally:
                self._waiting = 0
                self._outside.zero_grad(set_to_none=True)

    def _run(self, plan: PlannedStep | None, inputs: Inputs) -> Tensor:
        """Run one iteration.

        One that fails adds no gradients; if it is alone in its update it leaves none.
        """
        many, processes = self._iteration.accumulate, self._iteration.processes
        if processes is not None and self._waiting + 1 == many:
            processes.check_syncs()
        try:
            loss = super()._run(plan, inputs)
        except DifferenceError:  # eager's iteration is kept
            self._count()
            raise
        except BaseException:
            if many == 1:
                self._outside.zero_grad(set_to_none=True)
            raise
        self._count()
        return loss

    def _count(self) -> None:
        """Count a batch whose gradients are there, and update the weights after the last one."""
        self._waiting += 1
        if self._waiting == self._iteration.accumulate:
            self.update()

    @property
    def _begins(self) -> bool:
        return self._waiting == 0

    def _step(self) -> None:
        if self._iteration.processes is not None:
            names = list(self.plans[0].program.gradients)[::-1]
            sums = [parameter.grad for parameter in self.plans[0].parameters(names)]
            self._iteration.processes.average_all(each for each in sums if each is not None)
        if self._scaling is not None and self._clipping is not None:
            self._scaling.scaler.unscale_(self._outside)
        if self._clipping is not None:
            parameters, most = self._iteration.module.parameters(), self._clipping.max_norm
            self.plans[0].grad_norm = nn.utils.clip_grad_norm_(parameters, most)
        if self._scaling is None:
            self._outside.step()
        else:
            self._scaling.step(self._outside)


def _taken(optimizer: Optimizer, accumulate: int, trained: Mapping[str, nn.Parameter]) -> LoopMemory:
    """Count what the optimizer takes, and the sums of gradients if `accumulate` batches make an update."""
    taken = counted(optimizer, trained)
    sums = gradient_bytes(trained.values()) if accumulate > 1 else 0
    return LoopMemory(taken.states, sums, taken.peak, type(optimizer).__name__)
