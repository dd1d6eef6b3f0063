"""The arguments of a call of a step, read as the plan's inputs.

The inputs themselves, `step(x, y)` or `step(a=x, b=y)`, or a batch of their form as a loader gives it: a
tuple or list if the plan's inputs are given by position, a dict if they have names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...graphs.errors import MismatchError
from .iteration import TARGETS, Inputs, Labelled, others_in, tensors_in, unscaled, with_targets


class Reading:
    """Reader of calls by the form of a plan's inputs, whose tensors are not held."""

    def __init__(self, inputs: Inputs) -> None:
        inputs = unscaled(inputs)
        self._has_targets = isinstance(inputs, Labelled)
        alone = inputs.inputs if isinstance(inputs, Labelled) else inputs
        self._named = list(alone) if isinstance(alone, dict) else None
        self._kinds = [type(each) for each in alone]
        self._places = _places(alone)

    def read(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Inputs:
        """Return the call's inputs, with the targets if the plan has some. Raises MismatchError."""
        keywords = dict(keywords)
        targets = keywords.pop(TARGETS, None) if self._has_targets else None
        if arguments and keywords:
            raise MismatchError("a step takes its inputs by position or by name, as the plan does, not both")
        if arguments and self._named is not None:
            return with_targets(self._dict(arguments), targets)
        if len(arguments) == 1 and self._is_batch(arguments[0]):
            arguments = tuple(arguments[0])
        if self._has_targets and targets is None and len(arguments) == len(self._kinds) + 1:
            raise MismatchError(
                "the last of the batch has no place: give targets by name, step(…, targets=…)"
            )
        return with_targets(keywords or arguments, targets)

    def _dict(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if len(arguments) == 1 and isinstance(arguments[0], Mapping):
            return dict(arguments[0])
        given = " and a ".join(type(each).__name__ for each in arguments)
        raise MismatchError(
            f"a step is given a {given}; the plan's inputs have names, {', '.join(self._named or ())}: "
            "give a dict, step(batch), or step(**batch)"
        )

    def _is_batch(self, argument: Any) -> bool:
        """Tell whether the argument is a batch, and not the only input of the plan, which may be a nest
        itself.
        """
        if isinstance(argument, Mapping) and not any(issubclass(kind, Mapping) for kind in self._kinds):
            raise MismatchError("the batch is a dict; the plan's inputs stand by position: give a tuple")
        if not isinstance(argument, tuple | list):
            return False
        a_nest = len(self._kinds) == 1 and issubclass(self._kinds[0], tuple | list)
        return not a_nest or _places(tuple(argument)) == self._places


def _places(inputs: Any) -> set[str]:
    return {*tensors_in(inputs), *others_in(inputs)}
