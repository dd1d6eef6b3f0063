"""What a training loop calls: one iteration within the budget, for batches of any shape.

A plan holds for one shape. The first batch of each shape has one made, which takes as long as the first did;
a smaller last batch is such a shape. All plans train the same weights: what one has moved to the host the
next takes over, tensor by tensor (runtime/run/custody.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor

from ..graphs.errors import MismatchError
from ..graphs.units import duration
from ..planner.card import Card, Entry
from ..runtime.interrupts import deferred_signals, open_to_signals
from ..runtime.model.clipping import parse_norm
from ..runtime.model.iteration import Inputs, Iteration, Purpose, scale_of, tensors_in
from ..runtime.run.execute import Outcome, PlannedStep
from ..runtime.storage.home import at_home
from ..runtime.updates.averaged import averages
from . import checkpoint
from .adapt import Adapter
from .buckets import Buckets
from .evaluation import Evaluation, Forward
from .loss import Losses
from .plan import Planner
from .plans import Plans
from .report import Prediction, Report
from .retry import with_less
from .scaling import Scaling


class Step:
    def __init__(
        self,
        iteration: Iteration,
        planner: Planner,
        buckets: Buckets | None,
        *,
        plan: Callable[..., PlannedStep] | None = None,
        parts: int = 1,
    ) -> None:
        """Plan the shape of the iteration's inputs, in the largest bucket. Raises MemplanError.

        plan: makes plans instead of the planner.
        parts: see Scaling.
        """
        plan = plan or planner
        self._planner, self._book = planner, planner.book
        self._scaling = (
            None if iteration.scaler is None else Scaling(iteration.scaler, _device(iteration), parts)
        )
        if self._scaling is not None:
            iteration = iteration._replace(inputs=self._scaling.of(iteration.inputs))
        self._plans = Plans(iteration, plan, planner.options.max_plans, buckets)
        several = iteration.updates is not None and iteration.accumulate > 1  # parts beside the plan
        alone = iteration.processes is None and not several
        self._adapter = Adapter(planner, on=planner.options.replan_on_drift and alone)
        self._forward: dict[Purpose, Forward] = {}
        self._plan = plan
        self._plans.serving(iteration.inputs if buckets is None else buckets.largest(iteration.inputs))
        self._own = iteration.updates and iteration.updates.optimizer
        self._losses = Losses(updates=iteration.updates is not None)
        self._clipping = iteration.updates and iteration.updates.clipping
        self._iteration = iteration._replace(inputs=())  # a batch is not held
        self._synced = True
        self._alone = RLock()  # a step is one training: threads that call it take turns

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """The loss. Without an optimizer in the plan `loss.backward()` adds the gradients to the parameters'
        `.grad`, as ever; with one the weights are updated.

        Raises MemplanError: a batch that differs in more than its shape, a shape too many, no schedule within
        the budget, … as PlannedStep does.
        """
        checkpoint.check_loaded(self._iteration.module)
        with self._alone:
            self.plans[0].output = None
            inputs = self.plans[0].given(arguments, keywords)
            self._losses.begin(inputs)
            if self._scaling is not None:
                inputs = self._scaling.of(inputs)
            plan, inputs = self._plans.serving(inputs)
            with deferred_signals():
                return self._run(plan, inputs)

    def _run(self, plan: PlannedStep, inputs: Inputs) -> Tensor:
        """The loss of one iteration. Nothing in it is interrupted but what computes, see interrupts.py."""
        plan = self.plans[0] = self._adapter.before(plan, self._iteration._replace(inputs=inputs))
        iterate = partial(self._iterate, inputs)
        if self._iteration.processes is not None:  # others do not repeat theirs
            outcome = iterate(plan)
        else:
            outcome = with_less(plan, iterate, partial(self._smaller, inputs))
        if self._scaling is not None and self._iteration.updates is not None:
            self._scaling.updated(self._iteration.updates.optimizer, infinite=outcome.infinite)
        processes = self._iteration.processes
        self._synced = processes is None or self._iteration.updates is not None or processes.syncs
        return self._losses.of(self.plans[0], outcome, scale_of(inputs), processes if self._synced else None)

    def _card(self) -> Card:
        card, report = self.plan.card(), self.report().plans[0]
        measured = "not measured yet" if report.time is None else f"measured {duration(report.time)}"
        done = Entry("iterations", f"{report.iterations:,}", measured)
        return Card(f"Step of {type(self._iteration.module).__name__}", (done, *card.entries))

    def __repr__(self) -> str:
        return self._card().line()

    def _repr_html_(self) -> str:
        return self._card().html()

    @property
    def plan(self) -> Prediction:
        """Of the shape used last: graph, schedule, predicted time and peak; `step.plan.save(folder)`."""
        return self._book.prediction(self.plans[0])

    def report(self) -> Report:
        """Predicted and measured, plan by plan; as text a table."""
        return self._book.report(self.plans)

    def evaluate(self, *arguments: Any, **keywords: Any) -> Evaluation:
        """Forward alone, in eval mode and without gradients: the loss, and what `step.output` has after a
        training iteration. Planned within the same bytes, beside what training leaves on the device.

        The module's parts are afterwards in the mode that they had. Raises MemplanError, as a call does.
        """
        loss, output = self._without_training("evaluate", arguments, keywords)
        return Evaluation(cast("Tensor", loss), output)

    def predict(self, *arguments: Any, **keywords: Any) -> Any:
        """As `evaluate`, for batches without labels: what the module returns, all of it where
        `optimize(…, return_outputs=…)` names nothing."""
        return self._without_training("predict", arguments, keywords)[1]

    def _without_training(
        self, purpose: Purpose, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Tensor | None, Any]:
        checkpoint.check_loaded(self._iteration.module)
        with self._alone:
            self.plans[0].output = None
            if purpose not in self._forward:
                smaller = self._planner.smaller
                self._forward[purpose] = Forward(self._iteration, purpose, self._plan, smaller, self._plans)
            return self._forward[purpose](self.plans[0].given(arguments, keywords))

    @property
    def plans(self) -> list[PlannedStep]:
        """For training iterations, one for each shape seen so far; the one used last is the first."""
        return self._plans.steps

    @property
    def output(self) -> Any:
        """What the module has returned in the last iteration, detached, with the tensors that
        `optimize(…, return_outputs=…)` asks for; None in the place of others."""
        return self.plans[0].output

    @property
    def optimizer_stepped(self) -> bool:
        """Whether the last call has updated the weights: with accumulation not every one does, nor one whose
        scaled loss had a gradient that is not finite."""
        return self._scaling is None or not self._scaling.skipped

    def update(self) -> None:
        """With accumulation: update the weights with the gradients that were added up since the last update,
        where there are some, as at an epoch's end."""

    @property
    def grad_norm(self) -> Tensor | None:
        """Of all gradients of the last iteration, before clipping, on the device; None where none are clipped
        by it."""
        return self.plans[0].grad_norm

    @property
    def max_grad_norm(self) -> float | None:
        """What gradients are clipped to; may be set between steps where the plan clips."""
        return None if self._clipping is None else self._clipping.max_norm

    @max_grad_norm.setter
    def max_grad_norm(self, norm: float) -> None:
        if self._clipping is None:
            raise MismatchError("the plan clips no gradients: plan anew, with max_grad_norm=")
        self._clipping.max_norm = parse_norm(norm)

    def ema_state_dict(self) -> dict[str, Any]:
        """`module.state_dict()` with the weights' moving averages in their place, copies in host memory.
        Raises MismatchError where there are none."""
        updates = self._iteration.updates
        if updates is None or updates.ema is None:
            raise MismatchError("the plan has no averages of the weights: plan anew, with ema=")
        return averages(self._iteration.module, updates.optimizer)

    def restore_to_device(self) -> None:
        """Give module and optimizer back what plans have moved, on the device, until the next iteration."""
        with self._alone:
            for kind in (self._plans.steps, *(forward.plans.steps for forward in self._forward.values())):
                for step in kind:
                    step.restore_to_device()

    def save(
        self, folder: str | Path, *, optimizer: Any = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        """A checkpoint of module, optimizer and random numbers, read where they lie: see checkpoint.py.
        optimizer: where the plan has none. extra: what else the loop goes on from."""
        with self._alone:
            checkpoint.save(folder, self._iteration.module, self._optimizer(optimizer), extra)

    def load(
        self, folder: str | Path, *, optimizer: Any = None, extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Go on from a checkpoint. extra: what has a `load_state_dict`, by name; the rest is returned."""
        with self._alone:
            return checkpoint.load(folder, self._iteration.module, self._optimizer(optimizer), extra)

    def state_on_cpu(self) -> AbstractContextManager[None]:
        """A block in which `state_dict()` and pickles have weights and states where they lie, on the CPU."""
        return at_home()

    def _optimizer(self, given: Any) -> Any:
        if given is not None and self._own is not None and given is not self._own:
            raise MismatchError("the step updates weights by another optimizer")
        return given or self._own

    def _iterate(self, inputs: Inputs, plan: PlannedStep) -> Outcome:
        begun = plan.device.stamp()
        with plan.together(begins=self._begins):
            outcome = plan.iterate(inputs)
        self._book.iterated(plan, cast("Tensor", outcome.loss), begun)
        return outcome

    @property
    def _begins(self) -> bool:
        """Whether the next batch is the first of its update."""
        return self._synced

    def _smaller(self, inputs: Inputs, plan: PlannedStep, budget: int) -> PlannedStep:
        iteration = self._iteration._replace(inputs=inputs)
        with open_to_signals(first_interrupt=True):  # to solve takes long, and the iteration has not begun
            smaller = self._planner.smaller(iteration, plan, budget)
        return self._plans.replace(plan, smaller)


def _device(iteration: Iteration) -> torch.device:
    """Where it computes."""
    given = (*tensors_in(iteration.inputs).values(), *iteration.module.parameters())
    return next(tensor.device for tensor in given if tensor.device.type != "meta")
