"""The step that a training loop calls: one iteration within the budget, for batches of any shape.

A plan is for one shape. The first batch of each shape, such as a smaller last batch, gets a plan, which takes
as long as the first plan did. All plans train the same weights: a plan takes over, tensor by tensor, what
another has moved to the host (runtime/run/ownership.py).
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

from ...devices.storage.host_access import at_home
from ...graphs.errors import DifferenceError, MismatchError
from ...graphs.units import duration, format_bytes
from ...model.clipping import parse_norm
from ...model.iteration import Inputs, Iteration, Purpose, scale_of, tensors_in
from ...planner.card import Card, Entry
from ...profiling.compare.batch import train_eagerly
from ...solvers.problem import InfeasibleError
from ...steps.execute import IterationResult, PlannedStep
from ...torch_support.interrupts import deferred_signals, open_to_signals
from ...torch_support.unsupported import warn_user
from ...updates.averaged import averages
from ...updates.state import check_unfrozen
from ..checkpoints import checkpoint
from ..checkpoints.holding import Holding
from ..plans.adapt import Adapter
from ..plans.buckets import Buckets
from ..plans.loop_memory import Count, LoopWatch, trained_parameters
from ..plans.old_gradients import OldGradients
from ..plans.plan import Planner
from ..plans.plans import Plans
from ..plans.report import Prediction, Report
from .eager_batches import REASONS, EagerBatches
from .evaluation import Evaluation, Forward
from .loss import Losses
from .retry import with_less
from .scaling import Scaling


class Step:
    """A training iteration within a memory budget, as `memplan.optimize` returns it.

    A call runs forward and backward, and the update if the step has the optimizer. Calls from several threads
    run one after the other.

    Example::

        step = memplan.optimize(model, (x,), targets=y, loss_fn=cross_entropy, budget="12GB")
        for x, y in loader:
            optimizer.zero_grad()
            step(x, targets=y).backward()
            optimizer.step()
        print(step.report())
    """

    def __init__(
        self,
        iteration: Iteration,
        planner: Planner,
        buckets: Buckets | None,
        *,
        outside: Count | None = None,
        parts: int = 1,
    ) -> None:
        """Plan the shape of the iteration's inputs, in the largest bucket. Raises MemplanError.

        outside: counts what the loop has on the device outside of plans; None: as it has its own optimizer.
        parts: see Scaling.
        """
        self._planner, self._book = planner, planner.book
        self._scaling = (
            None if iteration.scaler is None else Scaling(iteration.scaler, _device(iteration), parts)
        )
        if self._scaling is not None:
            iteration = iteration._replace(inputs=self._scaling.of(iteration.inputs))
        self._loop = LoopWatch(iteration, planner.options, outside)
        planner.outside = self._loop.counted
        plan = partial(_planned, planner, self._loop)
        self._plans = Plans(iteration, plan, planner.giving_up, planner.options.max_plans, buckets)
        alone = iteration.alone and not iteration.accumulates and iteration.purpose != "part"
        drifts = planner.options.replan_on_drift and not planner.options.cuda_graph
        planner.improves = drifts and alone
        self._adapter = Adapter(planner, on=planner.improves)
        self._forward: dict[Purpose, Forward] = {}
        self._plans.serving(iteration.inputs if buckets is None else buckets.largest(iteration.inputs))
        if outside is None and planner.outside.bytes:
            self._book.note(self.plans[0], planner.outside.line)
            if planner.outside.assumed:
                warn_user(planner.outside.line)
        self._own = iteration.updates and iteration.updates.optimizer
        self._losses = Losses(
            updates=iteration.updates is not None, moves=planner.options.machine is not None
        )
        self._clipping = iteration.updates and iteration.updates.clipping
        self._iteration = iteration._replace(inputs=())  # a batch is not held
        self._eager = EagerBatches(self._iteration)
        self._old: OldGradients | None = None
        self._synced, self._exceeded = True, False
        self._alone = RLock()  # a step is one training: threads that call it take turns

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Run one iteration on a batch.

        Without an optimizer in the step, `loss.backward()` adds the gradients to the parameters' `.grad`, as
        usual. With one, the weights are updated when the call returns.

        Args:
            arguments: the module's positional arguments.
            keywords: the module's keyword arguments, and `targets` for the loss function if forward has none.

        Returns:
            The loss (Tensor).

        Raises:
            MismatchError: the batch differs from the planned one in more than its shape.
            InfeasibleError: there is no schedule for the batch's shape within the budget.
            DifferenceError: the plan computes something else than eager PyTorch, whose iteration is kept:
                the error's `loss` is its loss.
            MemplanError: the class of all errors of memplan, those above included.
        """
        checkpoint.check_loaded(self._iteration.module)
        with self._alone:
            self.plans[0].output = None  # else the last output would take memory during this iteration
            inputs = self.plans[0].given(arguments, keywords)
            self._losses.begin(inputs)
            if self._scaling is not None:
                inputs = self._scaling.of(inputs)
            plan, inputs = self._serving(inputs)
            with deferred_signals():
                return self._run(plan, inputs)

    def _serving(self, inputs: Inputs) -> tuple[PlannedStep | None, Inputs]:
        """Return the plan for the inputs, None for eager PyTorch, and the inputs as it takes them."""
        try:
            return self._plans.serving(inputs, self._eager.check_new)
        except REASONS as error:
            self._eager.take(inputs, error, self.plans)
            return None, inputs

    def _run(self, plan: PlannedStep | None, inputs: Inputs) -> Tensor:
        """Run one iteration and return its loss.

        plan: None for eager PyTorch.

        Only its computations can be interrupted, see interrupts.py.
        """
        if plan is None:
            return self._run_eagerly(inputs)
        plan = self._within(plan, inputs)
        if waiting := self._losses.waiting_bytes:
            self._weigh(plan, waiting)
        plan = self.plans[0] = self._adapter.before(plan, self._iteration._replace(inputs=inputs))
        if self._planner.outside.offloaded:
            plan = self._without_old_gradients(plan, inputs)
        iterate = partial(self._iterate, inputs)
        # Other processes do not repeat their iterations.
        outcome = self._verified(plan, inputs, iterate) if self._iteration.alone else iterate(plan)
        return self._loss(inputs, outcome)

    def _verified(
        self, plan: PlannedStep, inputs: Inputs, iterate: Callable[[PlannedStep], IterationResult]
    ) -> IterationResult:
        """Run an iteration, compared with eager PyTorch's if it is one of the plan's first.

        Raises DifferenceError with the loss of eager's iteration, which is then what was trained.
        """
        planner, iteration = self._planner, self._iteration._replace(inputs=inputs)

        def run() -> IterationResult:
            return with_less(plan, iterate, partial(self._smaller, inputs), planner.around)

        try:
            return planner.verification.iterate(iteration, plan, run, planner)
        except DifferenceError as error:
            error.loss = self._loss(inputs, train_eagerly(iteration, plan))
            raise

    def _loss(self, inputs: Inputs, outcome: IterationResult) -> Tensor:
        """Return the loss of an iteration that has run."""
        if self._scaling is not None and self._iteration.updates is not None:
            self._scaling.updated(self._iteration.updates.optimizer, infinite=outcome.infinite)
        processes = self._iteration.processes
        self._synced = processes is None or self._iteration.updates is not None or processes.syncs
        return self._losses.of(self.plans[0], outcome, scale_of(inputs), processes if self._synced else None)

    def _run_eagerly(self, inputs: Inputs) -> Tensor:
        """Run one iteration by eager PyTorch and return its loss."""
        self.restore_to_device()
        plan = self.plans[0]
        with open_to_signals():
            outcome = self._eager.run(inputs, plan, self._planner.around)
        plan.output, plan.grad_norm = plan.program.output.nest(outcome.outputs), outcome.grad_norm
        if self._scaling is not None and self._iteration.updates is not None:
            self._scaling.updated(self._iteration.updates.optimizer, infinite=outcome.infinite)
        return self._losses.of(plan, outcome, scale_of(inputs))

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
        """The plan of the shape used last: graph, schedule, predicted time and peak.

        `step.plan.save(folder)` writes it for the `plan` commands.
        """
        return self._book.prediction(self.plans[0], self._planner)

    def report(self) -> Report:
        """Return predicted and measured figures of each plan, the most recently used first.

        The text of the result is a table.
        """
        return self._book.report(self.plans, self._planner)

    def evaluate(self, *arguments: Any, **keywords: Any) -> Evaluation:
        """Run the forward pass and the loss on a batch, in eval mode and without gradients.

        It is planned within the same budget, less what training leaves on the device. Afterwards each
        submodule is in the mode that it had.

        Args:
            arguments: the module's positional arguments.
            keywords: the module's keyword arguments, and `targets` for the loss function if forward has none.

        Returns:
            An Evaluation: `loss` (Tensor) and `output`, the module's output as in `Step.output`.

        Raises:
            MemplanError: as a call of the step does.

        Example::

            loss = sum(step.evaluate(x, targets=y).loss.item() for x, y in validation) / len(validation)
        """
        loss, output = self._without_training("evaluate", arguments, keywords)
        return Evaluation(cast("Tensor", loss), output)

    def predict(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the forward pass on a batch without labels, in eval mode and without gradients.

        Args:
            arguments: the module's positional arguments.
            keywords: the module's keyword arguments.

        Returns:
            The module's output: the tensors that `optimize(…, return_outputs=…)` names, all if it names none.

        Raises:
            MemplanError: as a call of the step does.

        Example::

            logits = step.predict(x)
        """
        return self._without_training("predict", arguments, keywords)[1]

    def _without_training(
        self, purpose: Purpose, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Tensor | None, Any]:
        checkpoint.check_loaded(self._iteration.module)
        with self._alone:
            self.plans[0].output = None
            if purpose not in self._forward:
                self._forward[purpose] = Forward(self._iteration, purpose, self._planner, self._plans)
            return self._forward[purpose](self.plans[0].given(arguments, keywords))

    @property
    def plans(self) -> list[PlannedStep]:
        """Plans of training iterations, one for each shape seen so far, the most recently used first."""
        return self._plans.steps

    @property
    def output(self) -> Any:
        """The module's output in the last iteration, detached.

        It has the tensors that `optimize(…, return_outputs=…)` names, and None instead of the others.
        """
        return self.plans[0].output

    @property
    def optimizer_stepped(self) -> bool:
        """Whether the last call has updated the weights.

        With gradient accumulation not every call does, nor one whose scaled loss had a gradient that is not
        finite.
        """
        return self._scaling is None or not self._scaling.skipped

    def update(self) -> None:
        """Update the weights with the gradients accumulated since the last update, if there are any.

        Call it at an epoch's end. It does nothing without gradient accumulation.
        """

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of all gradients of the last iteration, before clipping, as a tensor on the device.

        None if the step clips no gradients.
        """
        return self.plans[0].grad_norm

    @property
    def max_grad_norm(self) -> float | None:
        """Norm to which gradients are clipped; may be set between iterations if the plan clips."""
        return None if self._clipping is None else self._clipping.max_norm

    @max_grad_norm.setter
    def max_grad_norm(self, norm: float) -> None:
        if self._clipping is None:
            raise MismatchError("the plan clips no gradients: plan anew, with max_grad_norm=")
        self._clipping.max_norm = parse_norm(norm)

    def ema_state_dict(self) -> dict[str, Any]:
        """Return `module.state_dict()` with the moving averages instead of the weights.

        Returns:
            Names and copies in host memory (dict).

        Raises:
            MismatchError: there are no averages: the step was planned without `ema`.
        """
        updates = self._iteration.updates
        if updates is None or updates.ema is None:
            raise MismatchError("the plan has no averages of the weights: plan anew, with ema=")
        return averages(self._iteration.module, updates.optimizer)

    def restore_to_device(self) -> None:
        """Move all offloaded tensors of module and optimizer to the device, until the next iteration."""
        with self._alone:
            for kind in (self._plans.steps, *(forward.plans.steps for forward in self._forward.values())):
                for step in kind:
                    step.restore_to_device()

    def save(
        self, folder: str | Path, *, optimizer: Any = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint of module, optimizer and random numbers.

        Each tensor is read in the memory that holds it, so that this takes no device memory.

        Args:
            folder (str or Path): the checkpoint's folder; an earlier checkpoint in it is replaced.
            optimizer (Optimizer, default None): the loop's optimizer, if the step has none.
            extra (mapping, default None): what else the loop resumes from, by name: numbers, text, tensors,
                containers of these, or objects with a `state_dict()`.

        Raises:
            MemplanError: a value can't be saved, or the disk is full. The earlier checkpoint is still there.

        Example::

            step.save("checkpoint", extra={"scheduler": scheduler, "epoch": epoch})
        """
        with self._alone:
            checkpoint.save(
                folder, self._iteration.module, self._optimizer(optimizer), extra, self._holding()
            )

    def load(
        self, folder: str | Path, *, optimizer: Any = None, extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint of `save` into module, optimizer and random numbers.

        Args:
            folder (str or Path): the checkpoint's folder.
            optimizer (Optimizer, default None): the loop's optimizer, if the step has none.
            extra (mapping, default None): objects by name, whose state is restored by their
                `load_state_dict`.

        Returns:
            The other values that were saved as `extra`, by name (dict).

        Raises:
            InputError: there is no complete checkpoint.
            MismatchError: it is that of another model or optimizer. In both cases nothing has changed.
            MemplanError: a value could not be replaced; calls are refused until a load succeeds.

        Example::

            epoch = step.load("checkpoint", extra={"scheduler": scheduler})["epoch"]
        """
        with self._alone:
            return checkpoint.load(
                folder, self._iteration.module, self._optimizer(optimizer), extra, self._holding()
            )

    def _holding(self) -> Holding:
        """Return the part of a checkpoint's tensors that this process holds."""
        return checkpoint.ALONE

    def state_on_cpu(self) -> AbstractContextManager[None]:
        """Return a context in which `state_dict()` and pickles have offloaded tensors on the CPU."""
        return at_home()

    def _optimizer(self, given: Any) -> Any:
        if given is not None and self._own is not None and given is not self._own:
            raise MismatchError("the step updates weights by another optimizer")
        return given or self._own

    def _iterate(self, inputs: Inputs, plan: PlannedStep) -> IterationResult:
        begun = plan.device.stamp()
        with plan.together(begins=self._begins):
            outcome = plan.iterate(inputs)
        self._book.iterated(plan, outcome.loss, begun, self._planner)
        return outcome

    @property
    def _begins(self) -> bool:
        """Whether the next batch is the first of its update."""
        return self._synced

    def _within(self, plan: PlannedStep, inputs: Inputs) -> PlannedStep:
        """Return the plan, or one for fewer bytes if the loop has more outside of plans than was counted.

        Raises InfeasibleError.
        """
        planner, more = self._planner, self._loop.look(plan.program.gradients)
        try:
            if more is not None:
                self._old = None
                planner.leave_room(more)
                more.check_step(plan.program, planner.bytes or 0)
                self._book.note(plan, more.line)
        except InfeasibleError as error:
            raise planner.outside.added_to(error) from None
        if planner.limit is not None and (plan.budget or 0) > planner.limit:
            plan = self._smaller(inputs, plan, planner.limit)
        return plan

    def _without_old_gradients(self, plan: PlannedStep, inputs: Inputs) -> PlannedStep:
        """Move `.grad` to the host; return the plan, one for fewer bytes if some of it has to stay."""
        planner = self._planner
        if self._old is None:
            assert planner.options.machine is not None
            trained = trained_parameters(self._iteration.module).values()
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
        prediction = self._book.prediction(plan, self._planner)
        budget = prediction.limit
        # Gradients of before count only if there are some.
        peak = prediction.device.total - self._planner.outside.bytes + self._loop.bytes_now + waiting
        if peak > budget.total and not self._exceeded:
            self._exceeded = True
            warn_user(
                f"the budget of {budget} is exceeded: losses of earlier steps wait for "
                f"loss.backward(), with {format_bytes(waiting)} of gradients, and with them a step takes up "
                f"to {format_bytes(peak)}: call loss.backward() on each loss before the next step"
            )

    def _smaller(self, inputs: Inputs, plan: PlannedStep, budget: int) -> PlannedStep:
        iteration = self._iteration._replace(inputs=inputs)
        with open_to_signals(first_interrupt=True):  # to solve takes long, and the iteration has not begun
            smaller = self._planner.smaller(iteration, plan, budget)
        return self._plans.replace(plan, smaller)


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
