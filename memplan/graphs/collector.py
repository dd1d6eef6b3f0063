"""Python's collector of circles, off for a while: objects made meanwhile stay in its youngest generation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
_identity = object.__hash__

_SELDOM = 20_000, 10, 10
"""Objects made per collection of the youngest generation, and collections of one generation per one of the
next."""


class _Off:
    """Blocks without the collector. Traces of several threads overlap: the last one switches it on."""

    blocks = 0
    was_on = False
    looking = 0
    """Blocks that tell new objects by their generation."""


@contextmanager
def collector_off() -> Generator[None]:
    """Leave cyclic garbage where it is within the block.

    A trace makes so many objects that the collector would look through all of torch's, and finds nothing.
    """
    with _lock:
        if not _Off.blocks:
            _Off.was_on = gc.isenabled()
            gc.disable()
        _Off.blocks += 1
    try:
        yield
    finally:
        with _lock:
            _Off.blocks -= 1
            if not _Off.blocks and _Off.was_on:
                gc.enable()


@contextmanager
def youngest_kept() -> Generator[None]:
    """Leave objects made within the block in the youngest generation, and few others there."""
    with collector_off():
        collect_youngest()  # each look at the generation would pass by all that is there
        _count(1)
        try:
            yield
        finally:
            _count(-1)


def has_frozen() -> bool:
    """Tell whether the process has left objects out by `gc.freeze`: in 0.1 s per million of these."""
    return gc.get_freeze_count() > 0


@contextmanager
def collector_seldom() -> Generator[Callable[[], None]]:
    """Collect circles seldom within the block. Gives a function that leaves all objects of now out of it.

    Garbage of the block is still collected: a model that is built with memory is not kept for ever. In a
    process that has left objects out itself, that function does nothing: their end would be the end of all.
    """
    before, frozen = gc.get_threshold(), has_frozen()
    gc.set_threshold(*_SELDOM)
    try:
        yield gc.freeze if not frozen else lambda: None
    finally:
        if not frozen:
            gc.unfreeze()
        gc.set_threshold(*before)


def see_frozen() -> None:
    """Have the collector's lists show what the process has left out by `gc.freeze` too, from now on.

    Nothing is left out once more: `gc.freeze` takes all that is there, and the circles of a model or a plan
    made since would stay for ever.
    """
    gc.unfreeze()


def objects_of(kind: type) -> list[Any]:
    """Return the objects of a type and its subtypes, what the process has frozen among them.

    Not by isinstance: it asks objects for their __class__, and proxies run code then. Types are asked once
    each, since a process has a million objects.
    """
    see_frozen()
    found = gc.get_objects()
    types: list[type[Any]] = [*map(type, found)]
    # By identity: a metaclass may have a hash of its own, which runs code.
    kinds = {_identity(each): each for each in types}
    wanted = {identity for identity, each in kinds.items() if issubclass(each, kind)}
    return [each for each, its_type in zip(found, types, strict=True) if _identity(its_type) in wanted]


def collect_youngest() -> None:
    """Collect circles among young objects, unless a block would take those that stay for older ones."""
    with _lock:
        if not _Off.looking:
            gc.collect(0)


def _count(change: int) -> None:
    with _lock:
        _Off.looking += change
