"""One plan for each shape of batches: found, or made where there is none yet."""

from __future__ import annotations

from collections.abc import Callable

from ..graphs.errors import MismatchError
from ..runtime.model.iteration import Inputs, Iteration
from ..runtime.run.execute import OtherShapeError, PlannedStep


class Plans:
    """steps: one for each shape seen so far, `most` at most; the one used last is the first.

    plan: makes one. clear: is called before, so that weights are where a plan is made from.
    """

    def __init__(
        self,
        iteration: Iteration,
        plan: Callable[[Iteration], PlannedStep],
        most: int,
        clear: Callable[[], None],
    ) -> None:
        self.steps: list[PlannedStep] = []
        self._plan, self._most, self._clear = plan, most, clear
        self._iteration = iteration._replace(inputs=())  # a batch is not held

    def alike(self, iteration: Iteration, plan: Callable[[Iteration], PlannedStep]) -> Plans:
        """As many of another kind, none yet."""
        return Plans(iteration, plan, self._most, self._clear)

    def serving(self, inputs: Inputs) -> PlannedStep:
        """The one for their shape, made where there is none. Raises MismatchError, … as `check` does."""
        refused = None
        for step in self.steps:
            try:
                step.check(inputs)
            except OtherShapeError as error:
                refused = error
            else:
                break
        else:
            if len(self.steps) == self._most:
                raise MismatchError(
                    f"{refused}; with {self._most} plans there are as many as allowed: pad batches to fewer "
                    f"shapes, or optimize(…, plans={2 * self._most})"
                ) from None
            self._clear()
            step = self._plan(self._iteration._replace(inputs=inputs))
            self.steps.append(step)
        self.steps.remove(step)
        self.steps.insert(0, step)
        return step
