"""One plan per shape of batches, and per set of values that the code reads: found, or made on demand."""

from __future__ import annotations

from collections.abc import Callable

from ..graphs.errors import MismatchError
from ..runtime.interrupts import deferred_signals, open_to_signals
from ..runtime.model.iteration import Inputs, Iteration
from ..runtime.run.execute import PlannedStep
from ..runtime.run.inputs import OtherShapeError, OtherValuesError, UsedValuesError
from ..runtime.torch_internals import fake_results_forgotten
from ..runtime.unsupported import warn_user
from .buckets import Buckets


class Plans:
    """The plans of a step, most recently used first.

    steps: one for each shape seen so far, at most `most`.
    plan: makes a plan; it needs no values of the weights, which stay in their memories.
    buckets: the lengths that batches are padded to, None for no padding.
    """

    def __init__(
        self,
        iteration: Iteration,
        plan: Callable[[Iteration], PlannedStep],
        most: int,
        buckets: Buckets | None,
    ) -> None:
        self.steps: list[PlannedStep] = []
        self._said = False
        self._plan, self._most, self._buckets = plan, most, buckets
        self._iteration = iteration._replace(inputs=())  # a batch is not held

    def similar(self, iteration: Iteration, plan: Callable[[Iteration], PlannedStep]) -> Plans:
        """Return plans of another kind, with the same limit and lengths, none made yet."""
        return Plans(iteration, plan, self._most, self._buckets)

    def replace(self, step: PlannedStep, made: PlannedStep) -> PlannedStep:
        """Replace a step by one for the same shape."""
        self.steps[self.steps.index(step)] = made
        return made

    def serving(self, inputs: Inputs) -> tuple[PlannedStep, Inputs]:
        """Return the step for the inputs' shape, or for their padded shape, and the inputs as it takes them.

        A missing one is made. If the limit is reached, a step for a longer bucket is used. Raises
        MismatchError and others, as `check` does.
        """
        refused = None
        for given in [inputs] if self._buckets is None else self._buckets.options(inputs):
            for step in self.steps:
                try:
                    step.check(given)
                except OtherShapeError as error:
                    refused = refused or error
                else:
                    # At once: a signal in between would leave a list without the step.
                    self.steps[:] = [step, *(other for other in self.steps if other is not step)]
                    return step, given
            if len(self.steps) < self._most:
                if isinstance(refused, OtherValuesError) and not self._said:
                    self._said = True
                    warn_user(f"{refused}; another plan is made. {_GIVE_TENSORS}")
                with deferred_signals(), open_to_signals(first_interrupt=True), fake_results_forgotten():
                    made = self._plan(self._iteration._replace(inputs=given))
                self.steps.insert(0, made)
                return made, given
        allowed = f"with {self._most} plans there are as many as allowed"
        more = f"optimize(…, max_plans={2 * self._most})"
        if isinstance(refused, OtherValuesError):
            raise MismatchError(f"{refused}; {allowed}. {_GIVE_TENSORS}, or {more}")
        if isinstance(refused, UsedValuesError):
            raise MismatchError(
                f"{refused}; each set of these values has a plan of its own, and {allowed}: {more}, or write "
                "that part of the model so that no shape and no branch depends on them"
            )
        raise MismatchError(f"{refused}; {allowed}: pad batches to fewer shapes, or {more}")


_GIVE_TENSORS = "Give what changes often as a tensor, among inputs, targets or buffers"
