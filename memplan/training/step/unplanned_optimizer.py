"""Optimizers whose updates can't be planned: any `torch.optim.Optimizer` without a closure.

The step runs the planned forward and backward, then the optimizer's own step over all gradients. What it
takes is counted before anything is planned, and is outside of the plan (loop_memory.py).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import nn
from torch.optim import Optimizer

from ...devices.storage.offloaded import bring_back
from ...graphs.errors import DifferenceError, InputError
from ...model.iteration import Iteration
from ...planner.device_memory import DeviceMemory
from ...steps.execute import PlannedStep
from ...torch_support.unsupported import warn_user
from ...updates.catalogue import titles
from ...updates.optimizer_memory import counted
from ..options import Options
from ..plans.loop_memory import Count, LoopMemory, gradient_bytes
from ..plans.plan import Parts
from .scaling import Scaling
from .updating import Accumulating, Updating


class UnplannedOptimizer(Updating):
    """Updates by the optimizer's own step, after the plan of the last batch.

    Weights are updated and gradients freed when a call returns.
    """

    def __init__(
        self, iteration: Iteration, optimizer: Optimizer, options: Options, scaling: Scaling | None
    ) -> None:
        """Set up updates before anything is planned. Raises InputError.

        iteration: it has no updates; `accumulate` of them make one update.
        """
        if options.rollback_on_error:
            raise InputError(
                "rollback_on_error=True needs planned updates: "
                f"{type(optimizer).__name__} steps after the plan"
            )
        bring_back(iteration.module.parameters())
        super().__init__(iteration)
        self.optimizer, self.clipping = optimizer, options.max_grad_norm
        self._stepping, self._scaling, self._waiting = optimizer, scaling, 0
        self._iteration = iteration._replace(inputs=())  # a batch is not held

    @property
    def count(self) -> Count:
        return partial(_taken, self._stepping, self._iteration.accumulate)

    @property
    def waiting(self) -> int:
        return self._waiting

    def planned(self, outside: LoopMemory, limit: DeviceMemory) -> None:
        several = self._iteration.accumulate > 1
        held = "its states and the sums of gradients" if several else "its states"
        warn_user(
            f"{type(self._stepping).__name__} is not in the plan: {held} take {outside.bytes:,} bytes all "
            f"the time of the budget of {limit}; {titles('and')} would be planned"
        )

    @contextmanager
    def batch(self, plans: list[PlannedStep]) -> Generator[None]:
        """Surround a batch. One that fails adds no gradients; if it is alone in its update it leaves none."""
        many, processes = self._iteration.accumulate, self._iteration.processes
        if processes is not None and self._waiting + 1 == many:
            processes.check_syncs()
        try:
            yield
        except DifferenceError:  # eager's iteration is kept
            self._add(plans)
            raise
        except BaseException:
            if many == 1:
                self._stepping.zero_grad(set_to_none=True)
            raise
        self._add(plans)

    def _add(self, plans: list[PlannedStep]) -> None:
        """Count a batch whose gradients are there, and update the weights after the last one."""
        self._waiting += 1
        if self._waiting == self._iteration.accumulate:
            self.update(plans[0], None)

    def update(self, plan: PlannedStep, parts: Parts | None) -> None:
        try:
            if self._waiting:
                self._step(plan)
        finally:
            self._waiting = 0
            self._stepping.zero_grad(set_to_none=True)

    def _step(self, plan: PlannedStep) -> None:
        if self._iteration.processes is not None:
            names = list(plan.program.gradients)[::-1]
            sums = [parameter.grad for parameter in plan.parameters(names)]
            self._iteration.processes.average_all(each for each in sums if each is not None)
        # Norms are of unscaled gradients; GradScaler.step does not unscale a second time.
        if self._scaling is not None and self.clipping is not None:
            self._scaling.scaler.unscale_(self._stepping)
        if self.clipping is not None:
            parameters, most = self._iteration.module.parameters(), self.clipping.max_norm
            plan.grad_norm = nn.utils.clip_grad_norm_(parameters, most)
        if self._scaling is None:
            self._stepping.step()
        else:
            self._scaling.step(self._stepping)


def updating_of(iteration: Iteration, options: Options, scaling: Scaling | None) -> Updating:
    """Return which batches of the iterations update the weights. Raises InputError."""
    if iteration.updates is None and options.optimizer is not None:
        return UnplannedOptimizer(iteration, options.optimizer, options, scaling)
    return Accumulating(iteration) if iteration.accumulates else Updating(iteration)


def _taken(optimizer: Optimizer, accumulate: int, trained: Mapping[str, nn.Parameter]) -> LoopMemory:
    """Count what the optimizer takes, and the sums of gradients if `accumulate` batches make an update."""
    taken = counted(optimizer, trained)
    sums = gradient_bytes(trained.values()) if accumulate > 1 else 0
    return LoopMemory(taken.states, sums, taken.peak, type(optimizer).__name__)
