"""Iterations of a step: each runs by the plan of its batch.

A plan is for one shape. The first batch of each shape, such as a smaller last batch, gets a plan, which takes
as long as the first plan did. All plans train the same weights: a plan takes over, tensor by tensor, what
another has moved to the host (runtime/run/ownership.py).

Several ranks that run the same plan (training/ranks) do so at the same time; a process by itself is a group
of one. Only its batches may be eager PyTorch's, or be repeated: other ranks do not repeat theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...graphs.errors import DifferenceError, MismatchError
from ...graphs.machine import Memory
from ...graphs.units import duration, format_bytes
from ...model.iteration import Inputs, Iteration, Purpose, scale_of, tensors_in
from ...planner.card import Card, Entry
from ...profiling.compare.batch import train_eagerly
from ...solvers.problem import InfeasibleError
from ...steps.execute import IterationResult, PlannedStep
from ...steps.inputs import OtherShapeError
from ...torch_support.interrupts import deferred_signals, open_to_signals
from ...torch_support.unsupported import warn_user
from ...updates.averaged import averages
from ...updates.state import check_unfrozen
from ..checkpoints import checkpoint
from ..checkpoints.holding import Holding
from ..checkpoints.placed_holding import holding_of
from ..plans.adapt_on_ranks import adapter_of
from ..plans.agreement import SharedCall
from ..plans.buckets import Buckets
from ..plans.loop_memory import LoopWatch, trained_parameters
from ..plans.old_gradients import OldGradients
from ..plans.plan import Planner
from ..plans.plans import Plans
from ..plans.report import Prediction, Report
from .eager_batches import REASONS, EagerBatches
from .evaluation import Forward
from .loss import Losses
from .retry import with_less
from .scaling import Scaling
from .unplanned_optimizer import updating_of

Result = TypeVar("Result")


class Executor:
    """The iterations of a step that has a plan. Its caller has it run one at a time.

    iteration: without inputs.
    plans: of training iterations, or of the forward passes of a step that does not train.
    updating: which batches update the weights.
    forward: forward passes between iterations, by their purpose.
    """

    def __init__(self, iteration: Iteration, planner: Planner, buckets: Buckets | None) -> None:
        """Plan the shape of the iteration's inputs, in the largest bucket. Raises MemplanError."""
        options = planner.options
        self.planner, self.book = planner, planner.book
        # The loop divides its losses if it accumulates; with an optimizer in the step, the plan does.
        divisor = options.gradient_accumulation_steps if options.optimizer is None else 1
        self.scaling = (
            None if iteration.scaler is None else Scaling(iteration.scaler, _device(iteration), divisor)
        )
        if self.scaling is not None:
            iteration = iteration._replace(inputs=self.scaling.of(iteration.inputs))
        self.updating = updating_of(iteration, options, self.scaling)
        self._loop = LoopWatch(iteration, options, self.updating.count)
        planner.outside = self._loop.counted
        plan = partial(_planned, planner, self._loop)
        self.plans = Plans(iteration, plan, planner.giving_up, options.max_plans, buckets)
        whole = not iteration.accumulates and iteration.purpose != "part"
        adapts = options.replan_on_drift and not options.cuda_graph and whole
        planner.improves = adapts and iteration.alone
        self._adapter = adapter_of(iteration, planner, on=adapts)
        self.forward: dict[Purpose, Forward] = {}
        self.plans.serving(iteration.inputs if buckets is None else buckets.largest(iteration.inputs))
        if self.updating.count is None and planner.outside.bytes:
            self.book.note(self.plan, planner.outside.line)
            if planner.outside.assumed:
                warn_user(planner.outside.line)
        self.updating.planned(planner.outside, self.prediction().limit)
        self.losses = Losses(updates=self.optimizer is not None, moves=options.machine is not None)
        self.iteration = iteration._replace(inputs=())  # a batch is not held
        self._eager = EagerBatches(self.iteration)
        self._old: OldGradients | None = None
        self._synced, self._exceeded = True, False

    @property
    def module(self) -> nn.Module:
        return self.iteration.module

    @property
    def optimizer(self) -> Optimizer | None:
        """The step's own optimizer, None if the loop has one."""
        return self.updating.optimizer

    @property
    def plan(self) -> PlannedStep:
        """The plan that was used last."""
        return self.plans.steps[0]

    def iterate(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run one iteration on a batch, as all ranks do.

        Returns the loss, or the module's output if the step does not train. Raises MemplanError, on all ranks
        if one has failed.
        """
        ranks = self.iteration.group
        ranks.note(None)
        try:
            checkpoint.check_loaded(self.module)
            self.plan.output = None  # else the last output would take memory during this iteration
            inputs = self.plan.given(arguments, keywords)
            return self._train(inputs) if self.iteration.trains else self._infer(inputs)
        except BaseException as error:
            ranks.note(error)
            raise

    def _train(self, inputs: Inputs) -> Tensor:
        self.losses.begin(inputs)
        if self.scaling is not None:
            inputs = self.scaling.of(inputs)
        plan, inputs = self._serving(inputs)
        with deferred_signals(), self.updating.batch(self.plans.steps):
            return self._run(plan, inputs)

    def _infer(self, inputs: Inputs) -> Any:
        """Run forward alone, and return the module's output."""
        with torch.inference_mode(False):  # weights come and go in it
            plan, inputs = self.plans.serving(inputs)
            with deferred_signals():
                self.repeated(plan, inputs, partial(self._iterate, inputs))
        output, self.plan.output = self.plan.output, None
        return output

    def _serving(self, inputs: Inputs) -> tuple[PlannedStep | None, Inputs]:
        """Return the plan for the inputs, None for eager PyTorch, and the inputs as it takes them."""
        try:
            return self.plans.serving(inputs, self._check_new)
        except REASONS as error:
            self._eager.take(inputs, error, self.plans.steps)
            return None, inputs

    def _check_new(self, inputs: Inputs, refused: OtherShapeError | None) -> None:
        """Raise an error if no plan is to be made for a batch, which eager PyTorch may run.

        refused: why other plans do not take it.
        """
        self._eager.check_new(inputs)
        if refused is not None:
            self._eager.check_values(inputs, refused, self.plans, self._planned_seconds)

    def _planned_seconds(self) -> float:
        """Return the seconds of an iteration by the fastest plan, as predicted if it is not measured."""
        return min(plan.time or plan.predicted_time for plan in self.report().plans)

    def _run(self, plan: PlannedStep | None, inputs: Inputs) -> Tensor:
        """Run one iteration and return its loss.

        plan: None for eager PyTorch.

        Only its computations can be interrupted, see interrupts.py.
        """
        if plan is None:
            return self._run_eagerly(inputs)
        plan = self._within(plan, inputs)
        if waiting := self.losses.waiting_bytes:
            self._weigh(plan, waiting)
        plan = self.plans.steps[0] = self._adapter.before(plan, self.iteration._replace(inputs=inputs))
        if self.planner.outside.offloaded:
            plan = self._without_old_gradients(plan, inputs)
        iterate = partial(self._iterate, inputs)
        if self.iteration.alone:
            return self._loss(inputs, self._verified(plan, inputs, iterate))
        # Ranks that run one plan do not repeat it. One with a plan of its own may, before the first average.
        own = self.iteration.ranks is None
        return self._loss(inputs, self.repeated(plan, inputs, iterate) if own else iterate(plan))

    def _verified(
        self, plan: PlannedStep, inputs: Inputs, iterate: Callable[[PlannedStep], IterationResult]
    ) -> IterationResult:
        """Run an iteration, compared with eager PyTorch's if it is one of the plan's first.

        Raises DifferenceError with the loss of eager's iteration, which is then what was trained.
        """
        planner, iteration = self.planner, self.iteration._replace(inputs=inputs)
        try:
            run = partial(self.repeated, plan, inputs, iterate)
            return planner.verification.iterate(iteration, plan, run, planner)
        except DifferenceError as error:
            error.loss = self._loss(inputs, train_eagerly(iteration, plan))
            raise

    def repeated(self, plan: PlannedStep, inputs: Inputs, iterate: Callable[[PlannedStep], Result]) -> Result:
        """Run an iteration, repeated by plans for less if it runs out of memory."""
        return with_less(plan, iterate, partial(self.smaller, inputs), self.planner.around)

    def _loss(self, inputs: Inputs, outcome: IterationResult) -> Tensor:
        """Return the loss of an iteration that has run."""
        self._scaled(outcome)
        processes = self.iteration.processes
        self._synced = processes is None or self.iteration.updates is not None or processes.syncs
        return self.losses.of(self.plan, outcome, scale_of(inputs), processes if self._synced else None)

    def _run_eagerly(self, inputs: Inputs) -> Tensor:
        """Run one iteration by eager PyTorch and return its loss."""
        self.restore_to_device()
        plan = self.plan
        with open_to_signals():
            outcome = self._eager.run(inputs, plan, self.planner.around)
        plan.output, plan.grad_norm = plan.program.output.nest(outcome.outputs), outcome.grad_norm
        self._scaled(outcome)
        return self.losses.of(plan, outcome, scale_of(inputs))

    def _scaled(self, outcome: IterationResult) -> None:
        """Update the scale after an iteration with planned updates."""
        if self.scaling is not None and self.iteration.updates is not None:
            self.scaling.updated(self.iteration.updates.optimizer, infinite=outcome.infinite)

    def card(self) -> Card:
        """Return the figures of the plan used last."""
        card, report = self.prediction().card(), self.report().plans[0]
        measured = "not measured yet" if report.time is None else f"measured {duration(report.time)}"
        done = Entry("iterations", f"{report.iterations:,}", measured)
        return Card(f"Step of {type(self.module).__name__}", (done, *card.entries))

    def prediction(self) -> Prediction:
        """Return the plan used last, with its graph, predicted time and peak."""
        return self.book.prediction(self.plan, self.planner)

    def report(self) -> Report:
        """Return the figures of each plan; of an update over several batches, of its last one first."""
        parts = [part for plan in self.plans.steps for part in self.planner.with_parts(plan)[:2]]
        return self.book.report(parts, self.planner)

    def without_training(
        self, purpose: Purpose, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Tensor | None, Any]:
        """Run forward on a batch, in eval mode. Returns the loss, None if there is none, and the output."""
        checkpoint.check_loaded(self.module)
        self.plan.output = None
        if purpose not in self.forward:
            self.forward[purpose] = Forward(self.iteration, purpose, self.planner, self.plans)
        return self.forward[purpose](self.plan.given(arguments, keywords))

    @property
    def optimizer_stepped(self) -> bool:
        """Whether the last call has updated the weights."""
        return not self.updating.waiting and (self.scaling is None or not self.scaling.skipped)

    def update(self) -> None:
        """Update the weights with the gradients that wait; ranks do so together."""
        if self.iteration.accumulates:
            with self.with_others("update"):
                self._update()
        else:
            self._update()

    def _update(self) -> None:
        with deferred_signals():
            self.updating.update(self.plan, self.planner.parts.get(self.plan))

    def averages(self) -> dict[str, Any]:
        """Return the module's state with the moving averages. Raises MismatchError if there are none."""
        updates = self.iteration.updates
        if updates is None or updates.ema is None:
            raise MismatchError("the plan has no averages of the weights: plan anew, with ema=")
        return averages(self.module, updates.optimizer)

    def restore_to_device(self) -> None:
        """Move all offloaded tensors of module and optimizer to the device, until the next iteration."""
        for plans in (self.plans, *(forward.plans for forward in self.forward.values())):
            for plan in plans.steps:
                for each in self.planner.with_parts(plan):
                    each.restore_to_device()

    @contextmanager
    def with_others(self, call: SharedCall) -> Generator[None]:
        """Surround a call that all ranks make. Raises MismatchError, on all of them, if one does not."""
        ranks = self.iteration.group
        ranks.note(None)
        self.plans.agree_on(call)
        with ranks.beating():
            yield

    def holding(self) -> Holding:
        """Return the part of a checkpoint's tensors that this process holds."""
        return holding_of(self.iteration)

    def _iterate(self, inputs: Inputs, plan: PlannedStep) -> IterationResult:
        with self.iteration.group.in_order():  # a rank that fails leaves the others' collectives
            part = self.updating.part(plan, self.planner.parts.get(plan))
            begun = part.device.stamp()
            with part.together(begins=self._begins):
                outcome = part.iterate(inputs)
            self.book.iterated(part, outcome, begun, self.planner)
            if part is not plan:
                plan.output, plan.grad_norm, part.output = part.output, part.grad_norm, None
            return outcome

    @property
    def _begins(self) -> bool:
        """Whether the next batch is the first of its update."""
        return self._synced if self.optimizer is None else not self.updating.waiting

    def _within(self, plan: PlannedStep, inputs: Inputs) -> PlannedStep:
        """Return the plan, or one for fewer bytes if the loop has more outside of plans than was counted.

        Raises InfeasibleError.
        """
        planner, more = self.planner, self._loop.look(plan.program.gradients)
        try:
            if more is not None:
                self._old = None
                planner.leave_room(more)
                more.check_step(plan.program, planner.bytes or 0)
                self.book.note(plan, more.line)
        except InfeasibleError as error:
            raise planner.outside.added_to(error) from None
        if planner.limit is not None and (plan.budget or 0) > planner.limit:
            plan = self.smaller(inputs, plan, planner.limit)
        return plan

    def _without_old_gradients(self, plan: PlannedStep, inputs: Inputs) -> PlannedStep:
        """Move `.grad` to the host; return the plan, one for fewer bytes if some of it has to stay."""
        planner = self.planner
        if self._old is None:
            assert planner.options.machine is not None
            trained = trained_parameters(self.module).values()
            self._old = OldGradients(trained, planner.options.machine)
        self._old.leave()
        if not self._old.staying:
            return plan
        self._loop.counted = planner.outside._replace(offloaded=False)
        planner.leave_room(self._loop.counted)
        warn_user(
            f"{format_bytes(self._old.staying)} of .grad stay on the device and count from now on: "
            f"{self._old.why}; call zero_grad() before each step, and give gradients='freed'"
        )
        return self._within(plan, inputs)

    def _weigh(self, plan: PlannedStep, waiting: int) -> None:
        """Warn once if gradients of losses that wait for their backward make an iteration exceed the budget.

        waiting: their bytes.
        """
        prediction = self.book.prediction(plan, self.planner)
        budget = prediction.limit
        # Gradients of before count only if there are some.
        peak = prediction.device.total - self.planner.outside.bytes + self._loop.bytes_now + waiting
        if peak > budget.total and not self._exceeded:
            self._exceeded = True
            warn_user(
                f"the budget of {budget} is exceeded: losses of earlier steps wait for "
                f"loss.backward(), with {format_bytes(waiting)} of gradients, and with them a step takes up "
                f"to {format_bytes(peak)}: call loss.backward() on each loss before the next step"
            )

    def smaller(
        self, inputs: Inputs, plan: PlannedStep, budget: int, capacity: tuple[Memory, int] | None = None
    ) -> PlannedStep:
        """Replace a plan by one for the same inputs with this budget in bytes. Raises InfeasibleError.

        capacity: a memory below the device, and what plans can have there.
        """
        iteration = self.iteration._replace(inputs=inputs)
        with open_to_signals(first_interrupt=True):  # to solve takes long, and the iteration has not begun
            smaller = self.planner.smaller(iteration, plan, budget, capacity)
        return self.plans.replace(plan, smaller)


def _planned(planner: Planner, loop: LoopWatch, iteration: Iteration) -> PlannedStep:
    """Make a plan, with room for what the loop has outside of it now. Raises MemplanError.

    A function, not a method: the plans of a step do not refer to it, so it goes when the user drops it.
    """
    if loop.others_train():
        _check_follows(iteration)
        if iteration.updates is not None:
            check_unfrozen(iteration.updates.optimizer, *loop.unfrozen())
        if (more := loop.look_at_frozen()) is not None:
            planner.leave_room(more)
    made = planner(iteration)
    loop.counted = planner.outside  # its gradients may be on the host now
    return made


def _check_follows(iteration: Iteration) -> None:
    """Raise MismatchError if the step can't go on with other frozen parameters."""
    why = ""
    if iteration.processes is not None:
        why = "DistributedDataParallel does not follow that: wrap the module anew, and plan it anew"
    elif iteration.updates is not None and iteration.updates.ema is not None:
        why = "the moving averages of frozen ones would stop: plan anew, without ema="
    if why:
        raise MismatchError(f"other parameters require a gradient than when the step was planned; {why}")


def _device(iteration: Iteration) -> torch.device:
    """Return the device on which the iteration computes."""
    given = (*tensors_in(iteration.inputs).values(), *iteration.module.parameters())
    return next(tensor.device for tensor in given if tensor.device.type != "meta")
