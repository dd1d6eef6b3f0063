"""One object as it was: the parts of which it consists, noted by identity, and how to put them back.

A walk (torch_support/reach.py) comes to each object by itself, so the content of one is shallow here: a list
is the objects in it, in their order. That is enough to put all of them back, each by itself, and it costs no
comparison by `==`, which may be anybody's code. What Python can't compare by identity counts by its bytes:
arrays, tensors, random generators.

Containers are asked as Python's own: a method of a user's class may do anything.
"""

from __future__ import annotations

import operator
import pickle
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..torch_support.raw import (
    MISSING,
    class_entries,
    class_entry,
    is_a,
    is_simple,
    own_attributes,
)
from ..torch_support.reach import Path, cell_contents, container_of, globals_in, is_of_python, is_of_user
from ..torch_support.torch_tensors import HOLD, attributes_of
from ..updates.several import members_of
from .saved import SavedTensor

LARGEST = 2**26
"""Bytes of an array; a larger one is data."""

PYTHON_NUMBERS, NUMPY_NUMBERS = "Python's random numbers", "NumPy's random numbers"

_Entries = Sequence[tuple[Any, Any]]


class Kept:
    """One object as it was.

    path: the path to it.
    draws: whose numbers it draws, if it is a random generator.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[], Any],
        write: Callable[[Any], object],
        changed: Callable[[Any, Any], list[object]],
        draws: str | None = None,
    ) -> None:
        """Note what it consists of now.

        read: returns that.
        write: puts back what `read` has returned.
        changed: returns what is different between two answers of `read`, as parts of a path; none if nothing
            is.
        """
        self.path, self.draws = path, draws
        self._read, self._write, self._changed = read, write, changed
        self._known = read()

    def changes(self) -> list[object]:
        """Return what of it is different now, as parts of a path; none if nothing is."""
        return self._changed(self._known, self._read())

    def put_back(self) -> None:
        """Put it back, unless it is as it was: what has not changed is not written."""
        if self.changes():
            self._write(self._known)


def kept(path: Path, thing: Any) -> Iterable[Kept]:
    """Yield what is noted of an object: its entries or its state, and its attributes."""
    if is_a(thing, dict):
        yield _kept_dict(path, thing)
    elif is_a(thing, list | set | deque):
        yield _kept_collection(path, thing)
    elif is_a(thing, CellType):
        yield Kept(path, partial(cell_contents, thing), partial(_fill_cell, thing), _in_order)
    elif is_a(thing, np.ndarray) and thing.nbytes <= LARGEST:
        yield _kept_array(path, thing)
    elif is_a(thing, FunctionType):
        if is_of_user(thing):
            yield _kept_globals(path[:-1], thing)
    elif (state := _state_of(thing)) is not None:
        yield _kept_generator(path, *state)
    if is_a(thing, Tensor):
        yield _kept_dict(path, attributes_of(thing), passed_by=HOLD)
        return
    own = None if is_a(thing, FunctionType | type) else own_attributes(thing)
    if own is not None and not is_of_python(type(thing)):
        yield _kept_dict(path, own)


def kept_class(path: Path, kind: type) -> Kept:
    """Note a class's attributes that are not methods."""
    entries = class_entries(kind)
    own = (name for name in entries if not name.startswith("__"))
    names = [name for name in own if class_entry(type(entries[name]), "__get__") is MISSING]

    def write(known: _Entries) -> None:
        for name, thing in known:
            if (
                class_entries(kind).get(name) is not thing
            ):  # each write makes Python forget what it has cached
                type.__setattr__(kind, name, thing)

    return Kept(path, lambda: _entries_of(class_entries(kind), names), write, _by_key)


def kept_tensor(path: Path, thing: Tensor) -> Kept:
    saved = SavedTensor(thing)
    return Kept(path, lambda: saved, SavedTensor.put_back, lambda saved, _now: _all_of(saved.has_changed()))


def kept_generators() -> Iterable[Kept]:
    """Yield the generators of Python and NumPy that are nobody's object."""
    yield _kept_generator((PYTHON_NUMBERS,), PYTHON_NUMBERS, random.getstate, random.setstate)
    yield _kept_generator((NUMPY_NUMBERS,), NUMPY_NUMBERS, np.random.get_state, np.random.set_state)


def kept_optimizer(optimizer: torch.optim.Optimizer) -> list[Kept]:
    """Note an optimizer's states, groups and attributes; not what tensors among them hold."""
    members = members_of(optimizer)
    states = [member.state for member in members]
    rows = *states, *(row for state in states for row in state.values()), *optimizer.param_groups
    return [_kept_dict((), row) for row in (*map(vars, members), *rows)]


def _kept_dict(path: Path, thing: dict[Any, Any], passed_by: str | None = None) -> Kept:
    """Note a dict, but for one of its entries.

    passed_by: the entry of an offloaded tensor's attributes in which memplan keeps who has its values. It
        goes together with the tensor's class and stays what it is: put back, it would name one who has none.
    """
    base = container_of(thing)

    def passes(key: object) -> bool:
        return type(key) is str and key == passed_by  # any other type's `==` may be the user's

    def read() -> _Entries:
        return [(key, part) for key, part in base.items(thing) if not passes(key)]

    def write(known: _Entries) -> None:
        stays = [(key, part) for key, part in base.items(thing) if passes(key)]
        base.clear(thing)
        for key, part in (*known, *stays):
            base.__setitem__(thing, key, part)

    return Kept(path, read, write, _by_key)


def _kept_globals(path: Path, function: FunctionType) -> Kept:
    """Note the globals that a function stores, of a module that has much else."""
    there = function.__globals__
    names = [name for name in globals_in(function.__code__, stored=True) if name in there]
    return Kept(path, lambda: _entries_of(there, names), there.update, _by_key)


def _entries_of(thing: Any, names: Iterable[str]) -> _Entries:
    return [(name, thing[name]) for name in names if name in thing]


def _kept_collection(path: Path, thing: Any) -> Kept:
    base = container_of(thing)

    def write(known: list[Any]) -> None:
        base.clear(thing)
        (base.update if base is set else base.extend)(thing, known)

    return Kept(path, lambda: list(base.__iter__(thing)), write, _in_any_order if base is set else _in_order)


def _kept_array(path: Path, thing: np.ndarray[Any, Any]) -> Kept:
    """Note an array. It is compared with a copy of its own: `read` returns no second copy."""
    known, with_nan = thing.copy(), thing.dtype.kind in "fc"

    def write(_thing: object) -> None:
        thing[...] = known

    def changed(_thing: object, _now: object) -> list[object]:
        return _all_of(not np.array_equal(thing, known, equal_nan=with_nan))

    return Kept(path, lambda: thing, write, changed)


def _fill_cell(cell: CellType, known: tuple[Any, ...]) -> None:
    if known:
        cell.cell_contents = known[0]
    else:
        del cell.cell_contents


def _kept_generator(path: Path, whose: str, read: Callable[[], Any], write: Callable[[Any], Any]) -> Kept:
    """Note a random generator. Its state may be a nest of arrays, which pickle writes as bytes."""
    return Kept(
        path,
        lambda: pickle.dumps(read()),
        lambda known: write(pickle.loads(known)),
        lambda known, now: _all_of(known != now),
        whose,
    )


def _state_of(thing: Any) -> tuple[str, Callable[[], Any], Callable[[Any], Any]] | None:
    """Return whose random generator it is, and functions that read and write its state; None for other
    things.
    """
    if is_a(thing, random.Random) and not is_a(thing, random.SystemRandom):
        return PYTHON_NUMBERS, thing.getstate, thing.setstate
    if is_a(thing, np.random.RandomState):
        return NUMPY_NUMBERS, thing.get_state, thing.set_state
    if is_a(thing, np.random.Generator):
        bits: Any = thing.bit_generator
        return NUMPY_NUMBERS, lambda: bits.state, lambda state: setattr(bits, "state", state)
    if is_a(thing, torch.Generator):
        generator = thing
        return (
            "a torch.Generator's numbers",
            lambda: generator.get_state().numpy(),
            lambda state: generator.set_state(torch.from_numpy(state)),
        )
    return None


# ── what is different between two contents: parts of a path, "" for the object itself ───────────────


def _all_of(is_different: bool) -> list[object]:
    return [""] if is_different else []


def _in_order(known: Collection[Any], now: Collection[Any]) -> list[object]:
    return _all_of(len(known) != len(now) or not all(map(operator.is_, known, now)))


def _in_any_order(known: Collection[Any], now: Collection[Any]) -> list[object]:
    return _all_of({*map(id, known)} != {*map(id, now)})


def _by_key(known: _Entries, now: _Entries) -> list[object]:
    """Compare entries. Their order is put back with them, but another order alone is no change."""
    both = zip(known, now, strict=False)
    if len(known) == len(now) and all(k is other and part is there for (k, part), (other, there) in both):
        return []
    there = {_key(key): part for key, part in now}
    names = {_key(key) for key, _part in known}
    return [
        *(key for key, part in known if there.get(_key(key), MISSING) is not part),
        *(key for key, _part in now if _key(key) not in names),
    ]


def _key(key: object) -> object:
    """Return a simple key itself, for any other something that is equal as long as it is the same object."""
    return key if type(key) is str or is_simple(key) else (MISSING, id(key))
