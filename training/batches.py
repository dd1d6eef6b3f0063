"""Batches epoch after epoch, which a run that is resumed goes on with where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..graphs.errors import InputError
from ..runtime.model.iteration import Inputs
from .random_numbers import random_numbers, set_random_numbers


class Batches:
    """epoch: makes the batches of one, each time anew. It draws random numbers of its own: what it shuffles
    depends on these alone, not on what the iterations between its batches draw. So the place in an epoch is
    found again by making its batches again, up to there."""

    def __init__(self, epoch: Callable[[], Iterable[Inputs]]) -> None:
        self._epoch = epoch
        self._numbers = random_numbers()
        self._begin()

    def __iter__(self) -> Iterator[Inputs]:
        return self

    def __next__(self) -> Inputs:
        """Raises InputError where an epoch is empty."""
        others = random_numbers()
        set_random_numbers(self._numbers)
        try:
            return self._next()
        finally:
            self._numbers = random_numbers()
            set_random_numbers(others)

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self._begun, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._numbers = state["begun"]
        self._begin()
        for _batch in range(state["taken"]):
            next(self)

    def _begin(self) -> None:
        self._begun, self._taken = self._numbers, 0
        self._batches: Iterator[Inputs] | None = None

    def _next(self) -> Inputs:
        if self._batches is None:
            self._batches = iter(self._epoch())
        for batch in self._batches:
            self._taken += 1
            return batch
        if not self._taken:
            raise InputError("data() gives no batch")
        self._numbers = random_numbers()
        self._begin()
        return self._next()
