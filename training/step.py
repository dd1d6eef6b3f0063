"""What a training loop calls: one iteration within the budget, for batches of any shape.

A plan holds for one shape. The first batch of each shape has one made, which takes as long as the first did;
a smaller last batch is such a shape. All plans train the same weights: what one has moved to the host the
next takes over, tensor by tensor (runtime/run/custody.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..graphs.errors import MismatchError
from ..runtime.model.iteration import Inputs, Iteration
from ..runtime.run.execute import OtherShapeError, PlannedStep
from ..runtime.storage.home import at_home
from . import checkpoint


class Step:
    """plans: one for each shape seen so far, `most` at most; the one used last is the first."""

    def __init__(self, iteration: Iteration, plan: Callable[[Iteration], PlannedStep], most: int) -> None:
        """Plans for the shape of the iteration's inputs. Raises MemplanError."""
        self.plans = [plan(iteration)]
        self._plan, self._most = plan, most
        self._own = iteration.updates and iteration.updates.optimizer
        self._iteration = iteration._replace(inputs=())  # a batch is not held

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        """The loss. Without an optimizer in the plan gradients are added to the parameters' `.grad`.

        Raises MemplanError: a batch that differs in more than its shape, a shape too many, no schedule within
        the budget, … as PlannedStep does.
        """
        self.plans[0].output = None
        inputs = self.plans[0].given(arguments, keywords)
        plan = self._plan_for(inputs)
        with plan.together():
            return plan.iterate(inputs)

    @property
    def output(self) -> Any:
        """What the module has returned in the last iteration, detached, with the tensors that
        `optimize(…, outputs=…)` asks for; None in the place of others."""
        return self.plans[0].output

    def recall(self) -> None:
        """Give module and optimizer back what plans have moved, on the device, until the next iteration."""
        for step in self.plans:
            step.recall()

    def save(
        self, folder: str | Path, *, optimizer: Any = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        """A checkpoint of module, optimizer and random numbers, read where they lie: see checkpoint.py.
        optimizer: where the plan has none. extra: what else the loop goes on from."""
        checkpoint.save(folder, self._iteration.module, self._optimizer(optimizer), extra)

    def load(
        self, folder: str | Path, *, optimizer: Any = None, extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Go on from a checkpoint. extra: what has a `load_state_dict`, by name; the rest is returned."""
        return checkpoint.load(folder, self._iteration.module, self._optimizer(optimizer), extra)

    def at_home(self) -> AbstractContextManager[None]:
        """A block in which `state_dict()` and pickles have weights and states where they lie, on the CPU."""
        return at_home()

    def _optimizer(self, given: Any) -> Any:
        if given is not None and self._own is not None and given is not self._own:
            raise MismatchError("the step updates weights by another optimizer")
        return given or self._own

    def _plan_for(self, inputs: Inputs) -> PlannedStep:
        """The one for their shape, made where there is none. Raises MismatchError, … as `check` does."""
        refused = None
        for step in self.plans:
            try:
                step.check(inputs)
            except OtherShapeError as error:
                refused = error
            else:
                break
        else:
            if len(self.plans) == self._most:
                raise MismatchError(
                    f"{refused}; with {self._most} plans there are as many as allowed: pad batches to fewer "
                    f"shapes, or optimize(…, plans={2 * self._most})"
                ) from None
            self.recall()
            step = self._plan(self._iteration._replace(inputs=inputs))
            self.plans.append(step)
        self.plans.remove(step)
        self.plans.insert(0, step)
        return step
