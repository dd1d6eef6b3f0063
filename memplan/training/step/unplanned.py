"""What a step has until its first call, whose batch is planned.

    step = memplan.optimize(model, budget="12GB")       # nothing is traced, nothing drawn from a generator
    for batch in loader:
        loss = step(batch)                              # the first batch is planned

The others find the plan of the first, as in a step that was given an example.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from ...graphs.errors import MemplanError
from ...model.iteration import TARGETS, joined
from ...model.reading import has_targets
from ...planner.card import Card, Entry
from ..checkpoints import checkpoint
from ..checkpoints.holding import Holding
from ..options import Options
from ..plans.agreement import SharedCall
from .executor import Executor

Planning = Callable[[nn.Module, Any, Options], Executor]
"""A function that plans the iterations of a step: of module, inputs and options."""

NOT_PLANNED = "the step has no plan yet: it is planned when it is first called with a batch"


class NotPlannedError(MemplanError, AttributeError):
    """Error of reading what a step knows only once it is planned."""


class Unplanned(NamedTuple):
    """A step's module and options, and the function that plans its iterations for a batch."""

    module: nn.Module
    options: Options
    plan: Planning

    @property
    def optimizer(self) -> Optimizer | None:
        return self.options.optimizer

    def planned(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Executor:
        """Plan the iterations for the batch of a call. Raises MemplanError."""
        options = self.options
        # Labels of the loss function; a forward with such an argument takes them as an input.
        if TARGETS in keywords and has_targets(self.module, options.loss_fn):
            keywords = dict(keywords)
            options = options.replaced(targets=keywords.pop(TARGETS))
        inputs = arguments[0] if len(arguments) == 1 else arguments
        return self.plan(self.module, joined(arguments, keywords) if keywords else inputs, options)

    def update(self) -> None:
        """Update the weights with what is accumulated: nothing is."""

    def with_others(self, _call: SharedCall) -> AbstractContextManager[None]:
        """Surround a call that all ranks make: they meet when they plan."""
        return nullcontext()

    def holding(self) -> Holding:
        return checkpoint.ALONE

    def card(self) -> Card:
        return Card(f"Step of {type(self.module).__name__}", (Entry("plans", "0", NOT_PLANNED),))
