"""Batches epoch after epoch, which a resumed run continues from its position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..graphs.errors import InputError
from ..model.iteration import Inputs
from .checkpoints.random_numbers import random_numbers, set_random_numbers


class Batches:
    """An endless iterator over the batches of one epoch after another, whose position can be saved.

    It has its own random state: what an epoch shuffles depends on this state alone, not on the numbers drawn
    by the iterations between its batches. So a position within an epoch is restored by producing the epoch's
    batches up to there.

    epoch: function that returns the batches of one epoch, called once per epoch.
    """

    def __init__(self, epoch: Callable[[], Iterable[Inputs]]) -> None:
        self._epoch = epoch
        self._numbers = random_numbers()
        self._begin()

    def __iter__(self) -> Iterator[Inputs]:
        return self

    def __next__(self) -> Inputs:
        """Return the next batch. Raises InputError if an epoch is empty."""
        others = random_numbers()  # the generators are global: the epoch's states are swapped in
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
        # Made, not skipped: what an epoch draws for them decides the batches that follow.
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
