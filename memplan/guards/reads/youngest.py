"""The objects made since a moment: the collector is off meanwhile, and they stay its youngest generation."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from ...graphs.collector import youngest_kept

_identity = object.__hash__
"""An object's identity as a number. `id` is an audit event, for which a trace listens: µs per object."""


class Youngest:
    """The objects made since a moment, by identity. A process may have millions of others.

    _mark: an object made at the last look. The generation lists objects in the order in which they came, so
    those after the mark are the ones that no look has seen.
    """

    def __init__(self) -> None:
        self._old: dict[int, Any] = {}
        self._new: set[int] = set()
        self._mark = list[Any]()
        self._watching = False

    @contextmanager
    def watched(self) -> Generator[None]:
        """Tell objects made in this context from others: in it, and afterwards for those that live."""
        with youngest_kept():
            # Objects of older generations were there, too, but are not listed: there may be millions. What is
            # in the youngest one later and not in this dict is new.
            self._mark, self._watching = [], True
            self._old = {_identity(each): each for each in gc.get_objects(generation=0)}
            try:
                yield
            finally:
                self._look()  # the collector may move them from here on
                self._watching = False

    def was_there(self, thing: Any) -> bool:
        """Tell whether an object was there when the context began."""
        identity = _identity(thing)
        if identity in self._old:
            return True
        if identity in self._new or not gc.is_tracked(thing):
            return False
        if self._watching:
            self._look()
        if identity in self._new:
            return False
        self._old[identity] = thing  # held, so that no other object gets its identity
        return True

    def _look(self) -> None:
        mark = list[Any]()  # before the look: what another thread makes meanwhile is looked at twice
        unseen = takewhile(lambda each: each is not self._mark, reversed(gc.get_objects(generation=0)))
        self._new.update(map(_identity, unseen))
        self._new.difference_update(self._old)
        self._mark = mark
