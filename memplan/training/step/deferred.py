"""A step that is planned when it is first called, with the batch of that call.

    step = memplan.optimize(model, budget="12GB")       # nothing is traced, nothing drawn from a generator
    for batch in loader:
        loss = step(batch)                              # the first batch is planned

The others find the plan of the first, as in a step that was given an example.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any

from torch import Tensor, nn

from ...graphs.errors import MemplanError
from ...model.iteration import TARGETS, Iteration, joined
from ...model.reading import has_targets
from ...planner.card import Card, Entry
from ..options import Options
from .step import Step

Planning = Callable[[nn.Module, Any, Options], Step]
"""A function that plans a step: of module, inputs and options."""

NOT_PLANNED = "the step has no plan yet: it is planned when it is first called with a batch"


class NotPlannedError(MemplanError, AttributeError):
    """Error of reading what a step knows only once it is planned."""


class DeferredStep(Step):
    """A Step without a plan. The first call plans its batch; from then on it is the planned step itself."""

    def __init__(self, module: nn.Module, options: Options, plan: Planning) -> None:
        """Set up a step that plans later.

        plan: plans the step for a batch.
        """
        self._iteration = Iteration(module, ())
        self._own = options.optimizer
        self._alone = RLock()
        self._planning, self._options = plan, options

    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor:
        with self._alone:
            if type(self) is not DeferredStep:  # another thread's call has planned it meanwhile
                return self(*arguments, **keywords)
            inputs, options = _example(self._iteration.module, arguments, keywords, self._options)
            step = self._planning(self._iteration.module, inputs, options)
            # The user holds this object: it becomes the planned step, with which it shares all attributes.
            self.__class__, self.__dict__ = type(step), step.__dict__  # pyright: ignore
        return self(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotPlannedError(NOT_PLANNED)

    def _card(self) -> Card:
        return Card(f"Step of {type(self._iteration.module).__name__}", (Entry("plans", "0", NOT_PLANNED),))


def _example(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], options: Options
) -> tuple[Any, Options]:
    """Return a call's batch as `optimize` takes it, and the options with the call's targets."""
    if TARGETS in keywords and has_targets(module, options.loss_fn):
        keywords = dict(keywords)
        options = options.replaced(targets=keywords.pop(TARGETS))
    if keywords:
        return joined(arguments, keywords), options
    return arguments[0] if len(arguments) == 1 else arguments, options
