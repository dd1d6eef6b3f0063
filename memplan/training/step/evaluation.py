"""Forward passes between training iterations: planned within the same bytes, over the same weights.

Optimizer states that training leaves on the device are not available to these plans. Weights that are on the
host are taken over from the training's plan, tensor by tensor, and fetched layer by layer: they are never all
on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...graphs.graph import Kind
from ...graphs.machine import Machine, Memory
from ...model.iteration import Inputs, Iteration, Purpose
from ...planner.simulator.footprint import Footprint
from ...program.program import Storage
from ...steps.execute import IterationResult, PlannedStep
from ..plans.plan import Planner
from ..plans.plans import Plans
from .retry import with_less


class Evaluation(NamedTuple):
    """Result of `Step.evaluate`. output: the module's output, as in `Step.output`."""

    loss: Tensor
    output: Any


class Forward:
    """Evaluations, or predictions, for batches of any shape. plans: those made so far."""

    def __init__(
        self,
        iteration: Iteration,
        purpose: Purpose,
        planner: Planner,
        training: Plans,
        mode: Callable[[nn.Module], AbstractContextManager[None]] | None = None,
    ) -> None:
        """Set up forward passes without a plan yet.

        training: the training's plans, which share the weights.
        mode: context that puts the module into the mode of the passes; by default eval mode.
        """
        outputs = iteration.outputs or purpose == "predict"
        self._iteration = iteration._replace(updates=None, processes=None, purpose=purpose, outputs=outputs)
        self._planner, self._training = planner, training
        self._mode = mode or evaluating
        self._beside = 0
        self.plans = self._none()

    def __call__(self, inputs: Inputs) -> tuple[Tensor | None, Any]:
        """Return the loss, None if there is none, and the module's output. Raises MemplanError."""
        extra = max(_beside(step) for step in self._training.steps)
        with self._mode(self._iteration.module), torch.inference_mode(False):  # weights come and go in it
            # Training leaves more on the device than these plans assume: they would exceed the budget.
            if extra > self._beside:
                self.restore_to_device()
                self._beside = extra
                self.plans = self._none()
            step, inputs = self.plans.serving(inputs)
            if (ranks := self._iteration.ranks) is None:
                less, around = partial(self._less, inputs), self._planner.around
                outcome = with_less(step, partial(_run, inputs), less, around)
            else:  # other ranks do not repeat theirs
                with ranks.in_order():
                    outcome = _run(inputs, step)
        return outcome.loss, step.program.output.nest(outcome.outputs)

    def _less(
        self, inputs: Inputs, step: PlannedStep, budget: int, capacity: tuple[Memory, int] | None = None
    ) -> PlannedStep:
        iteration = self._iteration._replace(inputs=inputs)
        return self.plans.replace(step, self._planner.smaller(iteration, step, budget, capacity))

    def restore_to_device(self) -> None:
        for step in self.plans.steps:
            step.restore_to_device()

    def _none(self) -> Plans:
        return self._training.similar(self._iteration, partial(self._planner, less=self._beside))


def _run(inputs: Inputs, step: PlannedStep) -> IterationResult:
    outcome = step.run(inputs)
    step.run_host_part(inputs, outcome)
    return outcome


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """Put the module in eval mode until the block ends; each submodule then gets its former mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _beside(step: PlannedStep) -> int:
    """Return the bytes of optimizer states that a plan leaves on the device, as shares or whole."""
    initial = None if step.cycle is None else step.cycle.schedule.initial
    offloaded = frozenset[int]() if initial is None else initial.named - initial.on(Memory.DEVICE)
    graph, shares = step.graph, dict[int, int]()
    if graph is not None:
        shares |= Footprint(graph, (graph.machine or Machine()).hierarchy).shares
    storages: Sequence[Storage] = step.program.storages
    return sum(
        shares.get(x, storage.bytes)
        for x, storage in enumerate(storages)
        if storage.kind == Kind.OPTIMIZER_STATE and (x in shares or x not in offloaded)
    )
