"""The arguments of a call of a step, read as inputs of an iteration.

    step(x, y)  step(a=x, b=y)  step(x, b=y)      the module's own call, module(x, b=y)
    step((x, y))  step([x, y])  step({"a": x})    a batch as a loader gives it

`targets` is an argument of the module if its forward has one of this name, else of the loss function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..graphs.errors import MismatchError
from .arguments import check_call, takes_argument
from .iteration import (
    TARGETS,
    Arguments,
    Inputs,
    Iteration,
    Labelled,
    LossFunction,
    apart,
    joined,
    others_in,
    tensors_in,
    unscaled,
    with_targets,
)


class Reading:
    """Reader of calls after a plan's, whose tensors are not held."""

    def __init__(self, iteration: Iteration) -> None:
        inputs = unscaled(iteration.inputs)
        alone = inputs.inputs if isinstance(inputs, Labelled) else inputs
        self._module, self._has_targets = iteration.module, isinstance(inputs, Labelled)
        self._for_loss = has_targets(iteration.module, iteration.loss_fn)
        self._kinds = [type(each) for each in apart(alone)[0]]
        self._form, self._places = _form(alone), _places(alone)

    def read(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Inputs:
        """Return the call's inputs, with the targets of the loss function, if it is given some.

        Raises MismatchError for a call that the module would not take either.
        """
        keywords = dict(keywords)  # the caller's stays as it is
        targets = keywords.pop(TARGETS, None) if self._for_loss else None
        if len(arguments) == 1 and not keywords and self._is_batch(arguments[0]):
            inputs = dict(arguments[0]) if isinstance(arguments[0], Mapping) else tuple(arguments[0])
        else:
            inputs = joined(arguments, keywords)
        if _form(inputs) != self._form:
            positional, named = apart(inputs)
            if self._has_targets and targets is None and len(positional) == len(self._kinds) + 1:
                raise MismatchError(
                    "the last of the batch has no place: give targets by name, step(…, targets=…)"
                )
            check_call(self._module, positional, named)
        return with_targets(inputs, targets)

    def _is_batch(self, argument: Any) -> bool:
        """Tell whether the only argument is a batch, and not an input, which may be a nest itself."""
        if isinstance(argument, Mapping):
            return not any(issubclass(kind, Mapping) for kind in self._kinds)
        if not isinstance(argument, tuple | list):
            return False
        a_nest = len(self._kinds) == 1 and issubclass(self._kinds[0], tuple | list)
        return not a_nest or _places(tuple(argument)) == self._places


def has_targets(module: nn.Module, loss_fn: LossFunction | None) -> bool:
    """Tell whether `targets` is an argument of the loss function, and not of forward."""
    return loss_fn is not None and not takes_argument(module, TARGETS)


def _form(inputs: Arguments) -> tuple[int, frozenset[str]]:
    """Return how many arguments are positional, and the names of the others."""
    positional, named = apart(inputs)
    return len(positional), frozenset(named)


def _places(inputs: Any) -> set[str]:
    return {*tensors_in(inputs), *others_in(inputs)}
