"""One plan per shape of batches, set of values that the code reads, and setting of the module (what is
frozen, modes, autocast): found, or made on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

from ...graphs.errors import MismatchError
from ...model.iteration import Inputs, Iteration
from ...steps.execute import PlannedStep
from ...steps.inputs import OtherModeError, OtherShapeError, OtherValuesError, UsedValuesError
from ...torch_support.interrupts import deferred_signals, open_to_signals
from ...torch_support.torch_fakes import fake_results_forgotten
from ...torch_support.unsupported import warn_user
from .agreement import Agreement, Found, SharedCall
from .buckets import Buckets
from .trace_watch import TraceWatch
from .value_plans import ValuePlans


class Plans:
    """The plans of a step, most recently used first.

    steps: one for each shape seen so far, at most `most`.
    by_values: of those that were made for other values alone.
    plan: makes a plan; it needs no values of the weights, which stay in their memories.
    giving_up: context in which a plan has given up its memory for another that replaces it.
    buckets: the lengths that batches are padded to, None for no padding.
    """

    def __init__(
        self,
        iteration: Iteration,
        plan: Callable[[Iteration], PlannedStep],
        giving_up: Callable[[PlannedStep], AbstractContextManager[None]],
        most: int,
        buckets: Buckets | None,
    ) -> None:
        self.steps: list[PlannedStep] = []
        self._said: set[str] = set()
        self._watch, self.by_values = TraceWatch(), ValuePlans()
        self._plan, self._giving_up, self._most, self._buckets = plan, giving_up, most, buckets
        self._iteration = iteration._replace(inputs=())  # a batch is not held
        ranks, shards = iteration.ranks, iteration.shards
        # Ranks of a module that communicates may have batches of different forms, each its own part.
        self._agreement = ranks and Agreement(ranks, iteration.purpose, one_form=shards is not None)

    def similar(self, iteration: Iteration, plan: Callable[[Iteration], PlannedStep]) -> Plans:
        """Return plans of another kind, with the same limit and lengths, none made yet."""
        return Plans(iteration, plan, self._giving_up, self._most, self._buckets)

    def replace(self, step: PlannedStep, made: PlannedStep) -> PlannedStep:
        """Replace a step by one for the same shape."""
        self.steps[self.steps.index(step)] = made
        return made

    def serving(
        self, inputs: Inputs, before_new: Callable[[Inputs, OtherShapeError | None], None] | None = None
    ) -> tuple[PlannedStep, Inputs]:
        """Return the step for the inputs' shape, or for their padded shape, and the inputs as it takes them.

        A missing one is made. If the limit is reached, a step for a longer bucket is used; if there is none,
        the step that was used least recently goes. Raises MismatchError and others, as `check` does.

        before_new: called before a step is made, which it may refuse, with the reason why another is needed;
            it warns of values that are others in every batch.
        """
        if self._agreement is not None:
            found = self._agreement.find(self.steps, self._buckets, inputs, self._find)
        else:
            options = [inputs] if self._buckets is None else self._buckets.options(inputs)
            found = self._find(options, self.steps)
        step, given, refused, differs = found
        if step is not None:
            # At once: a signal in between would leave a list without the step.
            self.steps[:] = [step, *(other for other in self.steps if other is not step)]
            self._watch.note(None)
            self.by_values.served(step)
            return step, given
        if before_new is not None:
            before_new(inputs, refused)
        used = isinstance(refused, UsedValuesError)
        if refused is not None and not (used and before_new):  # the first plan is none that is made anew
            self._watch.note(str(refused))
        if isinstance(refused, OtherValuesError):
            self._say("values", f"{refused}; another plan is made. {_GIVE_TENSORS}")
        if isinstance(refused, OtherModeError) and self._iteration.purpose != "part":  # there it is usual
            self._say("modes", f"{refused}; another plan is made")
        begun = perf_counter()
        try:
            step = self._made(given, warn=not (used and before_new))
            if used:
                self.by_values.made(step, perf_counter() - begun)
            return step, given
        except MismatchError as error:
            if differs:
                raise MismatchError(f"{error}. {differs}") from None
            raise

    def agree_on(self, call: SharedCall) -> None:
        """Agree with other ranks, if there are any, on a call without a batch. Raises MismatchError."""
        if self._agreement is not None:
            self._agreement.call(self._buckets, call)

    def _find(self, options: Sequence[Inputs], steps: Sequence[PlannedStep]) -> Found:
        """Find the step for the inputs, which may be padded in several ways, the shortest first."""
        full, refused = len(self.steps) >= self._most, None
        for given in options if full else options[:1]:
            for step in steps:
                try:
                    step.check(given)
                except OtherShapeError as error:
                    # Values say more than the shapes of another plan.
                    refused = error if refused is None or isinstance(error, UsedValuesError) else refused
                else:
                    return Found(step, given)
        return Found(None, options[0], refused)

    def _made(self, given: Inputs, *, warn: bool) -> PlannedStep:
        """Make the step for the inputs' shape, instead of the one used least recently if there are too many.

        If it can't be made, the other stays. warn: say that more plans would help.
        """
        leaving = self.steps[-1] if len(self.steps) >= self._most else None
        giving_up = nullcontext() if leaving is None else self._giving_up(leaving)
        with deferred_signals(), giving_up:
            with open_to_signals(first_interrupt=True), fake_results_forgotten():
                made = self._plan(self._iteration._replace(inputs=given))
            self.steps[:] = [made, *(step for step in self.steps if step is not leaving)]
        if leaving is not None and warn:
            self._say(
                "plans",
                f"more shapes, values or modes than max_plans={self._most}: the plan used least recently "
                f"goes, and is made once more when it is needed; max_plans={2 * self._most} keeps more",
            )
        return made

    def _say(self, what: str, line: str) -> None:
        """Warn once of a kind."""
        if what not in self._said:
            self._said.add(what)
            warn_user(line)


_GIVE_TENSORS = "Give what changes often as a tensor, among inputs, targets or buffers"
