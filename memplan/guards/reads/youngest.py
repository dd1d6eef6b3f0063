"""The objects made since a moment: the collector is off meanwhile, and they stay its youngest generation."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ...torch_support.collector import youngest_kept


class Youngest:
    """The objects made since a moment, by identity. A process may have millions of others."""

    def __init__(self) -> None:
        self._old: dict[int, Any] = {}
        self._new: set[int] = set()
        self._watching = False

    @contextmanager
    def watched(self) -> Generator[None]:
        """Tell objects made in this context from others: in it, and afterwards for those that live."""
        with youngest_kept():
            # Objects of older generations were there, too, but are not listed: there may be millions. What is
            # in the youngest one later and not in this dict is new.
            self._old, self._watching = {id(each): each for each in gc.get_objects(generation=0)}, True
            try:
                yield
            finally:
                self._look()  # the collector may move them from here on
                self._watching = False

    def was_there(self, thing: Any) -> bool:
        """Tell whether an object was there when the context began."""
        if id(thing) in self._old:
            return True
        if id(thing) in self._new or not gc.is_tracked(thing):
            return False
        if self._watching:
            self._look()
        if id(thing) in self._new:
            return False
        self._old[id(thing)] = thing  # held, so that no other object gets its identity
        return True

    def _look(self) -> None:
        self._new.update(map(id, gc.get_objects(generation=0)))
        self._new.difference_update(self._old)
