"""The step that a training loop calls: one iteration within the budget, for batches of any shape.

Step ──▶ Unplanned    until the first call, if no example batch was given
     └─▶ Executor     from then on: plans, and runs each batch by one of them
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from threading import RLock
from typing import Any, cast

from torch import Tensor

from ...devices.storage.host_access import at_home
from ...graphs.errors import MismatchError
from ...model.clipping import parse_norm
from ...model.iteration import Purpose
from ...steps.execute import PlannedStep
from ...torch_support.torch_saved_hooks import preserving_hooks_off
from ..checkpoints import checkpoint
from ..plans.report import Prediction, Report
from .evaluation import Evaluation
from .executor import Executor
from .unplanned import NOT_PLANNED, NotPlannedError, Unplanned


class Step:
    """A training iteration within a memory budget, as `memplan.optimize` returns it.

    A call runs forward and backward, and the update if the step has the optimizer; forward alone with
    `train=False`. Calls from several threads
    run one after the other.

    Example::

        step = memplan.optimize(model, (x,), targets=y, loss_fn=cross_entropy, budget="12GB")
        for x, y in loader:
            optimizer.zero_grad()
            step(x, targets=y).backward()
            optimizer.step()
        print(step.report())
    """

    def __init__(self, executor: Executor | Unplanned) -> None:
        """Set up a step. executor: runs its iterations; or what plans them at the first call."""
        self._held = executor
        self._alone = RLock()  # a step is one training: threads that call it take turns

    @property
    def _executor(self) -> Executor:
        if isinstance(self._held, Unplanned):
            raise NotPlannedError(NOT_PLANNED)
        return self._held

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """Run one iteration on a batch.

        Without an optimizer in the step, `loss.backward()` adds the gradients to the parameters' `.grad`, as
        usual. With one, the weights are updated when the call returns.

        Args:
            arguments: the module's positional arguments.
            keywords: the module's keyword arguments, and `targets` for the loss function if forward has none.

        Returns:
            The loss (Tensor). With `train=False`, the module's output as under `torch.no_grad()`: the tensors
            that `return_outputs` names, all if it names none.

        Raises:
            MismatchError: the batch differs from the planned one in more than its shape.
            InfeasibleError: there is no schedule for the batch's shape within the budget.
            DifferenceError: the plan computes something else than eager PyTorch, whose iteration is kept:
                the error's `loss` is its loss.
            MemplanError: the class of all errors of memplan, those above included.
        """
        with self._alone, preserving_hooks_off():
            if isinstance(self._held, Unplanned):
                self._held = self._held.planned(arguments, keywords)
            return self._held.iterate(arguments, keywords)

    def __repr__(self) -> str:
        return self._held.card().line()

    def _repr_html_(self) -> str:
        return self._held.card().html()

    @property
    def plan(self) -> Prediction:
        """The plan of the shape used last: graph, schedule, predicted time and peak.

        `step.plan.save(folder)` writes it for the `plan` commands.
        """
        return self._executor.prediction()

    def report(self) -> Report:
        """Return predicted and measured figures of each plan, the most recently used first.

        The text of the result is a table.
        """
        return self._executor.report()

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
        with self._alone:
            return self._executor.without_training(purpose, arguments, keywords)

    @property
    def plans(self) -> list[PlannedStep]:
        """Plans of training iterations, one for each shape seen so far, the most recently used first."""
        return self._executor.plans.steps

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
        return self._executor.optimizer_stepped

    def update(self) -> None:
        """Update the weights with the gradients accumulated since the last update, if there are any.

        Call it at an epoch's end, on all ranks. It does nothing without gradient accumulation.
        """
        with self._alone:
            self._held.update()

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of all gradients of the last iteration, before clipping, as a tensor on the device.

        None if the step clips no gradients.
        """
        return self.plans[0].grad_norm

    @property
    def max_grad_norm(self) -> float | None:
        """Norm to which gradients are clipped; may be set between iterations if the plan clips."""
        clipping = self._executor.updating.clipping
        return None if clipping is None else clipping.max_norm

    @max_grad_norm.setter
    def max_grad_norm(self, norm: float) -> None:
        clipping = self._executor.updating.clipping
        if clipping is None:
            raise MismatchError("the plan clips no gradients: plan anew, with max_grad_norm=")
        clipping.max_norm = parse_norm(norm)

    def ema_state_dict(self) -> dict[str, Any]:
        """Return `module.state_dict()` with the moving averages instead of the weights.

        Returns:
            Names and copies in host memory (dict).

        Raises:
            MismatchError: there are no averages: the step was planned without `ema`.
        """
        return self._executor.averages()

    def restore_to_device(self) -> None:
        """Move all offloaded tensors of module and optimizer to the device, until the next iteration."""
        with self._alone:
            self._executor.restore_to_device()

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
        with self._alone, self._held.with_others("save"):
            own = self._optimizer(optimizer)
            checkpoint.save(folder, self._held.module, own, extra, self._held.holding())

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
        with self._alone, self._held.with_others("load"):
            own = self._optimizer(optimizer)
            return checkpoint.load(folder, self._held.module, own, extra, self._held.holding())

    def state_on_cpu(self) -> AbstractContextManager[None]:
        """Return a context in which `state_dict()` and pickles have offloaded tensors on the CPU."""
        return at_home()

    def _optimizer(self, given: Any) -> Any:
        own = self._held.optimizer
        if given is not None and own is not None and given is not own:
            raise MismatchError("the step updates weights by another optimizer")
        return given or own
