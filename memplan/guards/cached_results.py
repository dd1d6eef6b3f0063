"""Results that a `functools.lru_cache` holds: forgotten if they have tensors.

A table of masks that a cached function makes once is made in the trace if it is not there yet. Then the cache
holds fake tensors, and every later iteration would compute with these.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn

from ..graphs.collector import see_frozen
from ..torch_support.raw import own_attributes
from ..torch_support.reach import is_of_user_class
from ..torch_support.torch_fakes import FakeTensor


@contextmanager
def caches_forgotten() -> Generator[None]:
    """Clear tensors from every `functools.lru_cache`, before and afterwards.

    One from before would be a constant of the trace, one that is made meanwhile is fake.
    """
    _forget_tensors()
    try:
        yield
    finally:
        _forget_tensors()


_CACHED: Any = type(functools.cache(len))
_CONTAINERS = (tuple, list, dict, CellType)


_MANY = 16
"""Misses that a cache, once cleared, does not reach once more between two looks."""

_fixed: WeakKeyDictionary[Any, tuple[int, int, int]] = WeakKeyDictionary()
"""Caches that held neither a tensor nor a container that can change: their hits, misses and size then."""


def _forget_tensors() -> None:
    for cached in _caches.all():
        hits, misses, _most, size = cached.cache_info()
        if size and not _is_as_it_was(_fixed.get(cached), (hits, misses, size)):
            holds_tensor, can_change = _looked_into(cached)
            if holds_tensor:
                cached.cache_clear()
            elif not can_change:
                _fixed[cached] = hits, misses, size


def _is_as_it_was(then: tuple[int, int, int] | None, now: tuple[int, int, int]) -> bool:
    """Tell whether a cache has the same content: only a miss adds to it, and clearing resets the counts."""
    if then is None or then[1:] != now[1:]:
        return False
    return now[0] == then[0] or (now[0] > then[0] and now[1] > _MANY)


class _Caches:
    """Every `functools.lru_cache` of this process.

    To find them takes the longer the more objects there are, so it is repeated only when there are new ones:
    each counts as a reference to their type, if Python counts these (without its global lock it does not).
    Most processes that leave objects out by `gc.freeze` have few others: new caches are among these.
    """

    def __init__(self) -> None:
        self._known: WeakSet[Any] = WeakSet()
        self._other_references: int | None = None
        before, one = sys.getrefcount(_CACHED), functools.cache(len)
        self._counted = sys.getrefcount(_CACHED) - before == 1
        del one

    def all(self) -> list[Any]:
        if self._counted and self._other_references is not None and not self._is_complete():
            self._search()
        if not self._counted or not self._is_complete():
            see_frozen()
            self._search()
            self._other_references = self._references()
        return list(self._known)

    def _search(self) -> None:
        self._known.update(found for found in gc.get_referrers(_CACHED) if type(found) is _CACHED)

    def _is_complete(self) -> bool:
        return self._references() == self._other_references

    def _references(self) -> int:
        """Return the number of references to the type, without those of the caches that are known and
        alive.
        """
        return sys.getrefcount(_CACHED) - len(self._known)


_caches = _Caches()


def _looked_into(cached: Any) -> tuple[bool, bool]:
    """Tell whether a cache holds a tensor, five deep, and whether what holds it there can change.

    In containers and closures any tensor counts, in attributes of a user's objects a fake one alone: a real
    one is their state. All of one depth are checked at once, by their types.
    """
    own = (vars(cached), getattr(cached, "__wrapped__", None))  # of the function, such as its annotations
    things = [each for each in gc.get_referents(cached) if not any(each is one for one in own)]
    attributes, can_change = list[Any](), False
    for depth in range(5):
        kinds, fake = set(map(type, things)), set(map(type, attributes))
        if any(issubclass(kind, Tensor) for kind in kinds) or any(
            issubclass(each, FakeTensor) for each in fake
        ):
            return True, can_change
        can_change |= depth > 0 and any(issubclass(kind, list | dict) for kind in kinds)  # 0: its own table
        # One question per type: a cache may hold millions of objects.
        ordinary = set(filter(_is_plain_object, kinds | fake))
        states = [own_attributes(thing) for thing in (*things, *attributes) if type(thing) in ordinary]
        can_change |= bool(states)
        attributes = [*gc.get_referents(*states, *_insides(attributes, fake))]
        things = gc.get_referents(*_insides(things, kinds))
    return False, can_change


def _insides(things: list[Any], kinds: set[type]) -> list[Any]:
    """Return the containers among things, and the closures of the functions among them."""
    inside = {kind for kind in kinds if issubclass(kind, _CONTAINERS) or kind.__module__ == "functools"}
    return [
        thing.__closure__ if type(thing) is FunctionType else thing
        for thing in things
        if type(thing) in inside or (type(thing) is FunctionType and thing.__closure__)
    ]


def _is_plain_object(kind: type) -> bool:
    return is_of_user_class(kind) and not issubclass(kind, (nn.Module, Tensor, *_CONTAINERS))
