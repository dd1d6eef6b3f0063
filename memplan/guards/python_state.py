"""The Python state that an iteration may change, put back: attributes, lists, closures, random generators.

Models count their iterations, keep hidden states, append to lists, install hooks at their first call. Traced
or compared, all that they can reach is afterwards what it was, the same objects with the same contents; what
had changed can be listed.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType
from typing import Any, NamedTuple
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor, nn

from ..model.iteration import Iteration, tensors_in
from ..torch_support.raw import (
    MISSING,
    bases_of,
    class_entries,
    class_entry,
    is_a,
    is_one_of,
    is_same_key,
    is_simple,
    module_of,
    own_attributes,
)
from ..torch_support.reach import (
    Parts,
    Path,
    cell_contents,
    container_of,
    entries_of,
    globals_in,
    is_of_python,
    is_of_user,
    is_of_user_class,
    methods_of_user,
    parts_with_code,
    reachable,
    spelled,
)
from ..torch_support.torch_internals import HOLD, FakeTensor, attributes_of
from .saved import SavedTensor, run_all

_RECORDS = ("transformers.trainer_callback",)
"""Modules of a library whose objects are a trainer's record of its training."""

_MOST_ENTRIES = 1000
"""A longer container of a trainer's is data."""

_OTHERS = (nn.Module, Tensor, torch.optim.Optimizer, torch.utils.data.DataLoader, torch.utils.data.Dataset)

_ROOTS = ("module", "loss_fn", "inputs")

_LARGEST = 2**26
"""Bytes of an array; a larger one is data."""


class _Noted(NamedTuple):
    """One thing as it was.

    changes: returns what of it is different now, as parts of a path; none if nothing is.
    draws: whose numbers it draws, if it is a random generator.
    of_optimizer: it is an optimizer's, or reached through one: its step changes it.
    """

    path: Path
    changes: Callable[[], list[object]]
    put_back: Callable[[], None]
    draws: str | None = None
    of_optimizer: bool = False


class PythonState:
    """All that the iteration's code can reach, as it is now.

    tensors: note also those that attributes, containers and closures hold, and that are neither parameters,
        buffers nor inputs; of those that only code reaches the small ones, which are not data.
    """

    def __init__(self, iteration: Iteration, *, tensors: bool) -> None:
        self._things: list[_Noted] = [*_of_generators()]
        classes: dict[int, type] = {}
        modules: set[str] = set()
        roots = dict(zip(_ROOTS, (iteration.module, iteration.loss_fn, iteration.inputs), strict=True))
        reached = list(reachable(roots, parts_with_code))
        optimizers = {path for path, thing in reached if is_a(thing, torch.optim.Optimizer)}
        for path, thing in reached:
            within = (
                any(path[:length] in optimizers for length in range(len(path) + 1)) if optimizers else False
            )
            self._things += (noted._replace(of_optimizer=within) for noted in _of(path, thing))
            for kind in bases_of(type(thing)):
                if id(kind) in classes:
                    continue
                classes[id(kind)] = kind
                if methods_of_user(kind):
                    self._things.append(_of_class(path, kind))
                if module_of(kind).partition(".")[0] != "torch" and not is_of_python(kind):
                    modules.add(module_of(kind))
        for name in sorted(modules):
            self._things += _of_module(name)
        self._of_owner = [*_of_owner(iteration)]
        self._things += self._of_owner
        if tensors:
            self._things += _of_tensors(iteration, reached)

    def changes(self) -> list[str]:
        """Return the paths of what is different now."""
        return [spelled((*kept.path, part)) for kept in self._things for part in kept.changes()]

    def changes_of_code(self) -> list[str]:
        """Return the paths of what forward, loss and backward have changed."""
        things = (kept for kept in self._things if not kept.of_optimizer)
        return [spelled((*kept.path, part)) for kept in things for part in kept.changes()]

    def changes_of_objects(self) -> list[str]:
        """Return the paths of what is different now in the module, the loss and what they hold."""
        return [
            spelled((*kept.path, part))
            for kept in self._things
            if kept.path and kept.path[0] in _ROOTS and not kept.draws
            for part in kept.changes()
        ]

    def changes_of_owner(self) -> list[str]:
        """Return the paths of what is different now in the owner of the iteration's function."""
        return [spelled((*kept.path, part)) for kept in self._of_owner for part in kept.changes()]

    def drawn(self) -> bool:
        """Tell whether random numbers of Python, NumPy or a separate generator were drawn since."""
        return self.drawn_from() is not None

    def drawn_from(self, *whose: str) -> str | None:
        """Return whose random numbers were drawn since, among these or any."""
        found = (kept.draws for kept in self._things if kept.draws and kept.changes())
        return next((each for each in found if not whose or each in whose), None)

    def draws(self) -> bool:
        """Tell whether random numbers were drawn that are not PyTorch's."""
        return self.drawn_from(PYTHON_NUMBERS, NUMPY_NUMBERS) is not None

    def put_back(self) -> None:
        """Put back each thing that has changed, whatever the others raise."""
        run_all([partial(_put_back, kept) for kept in self._things])


@contextmanager
def state_put_back(iteration: Iteration, *, tensors: bool = True) -> Generator[PythonState]:
    """Put back what the iteration has changed of Python's state when the context ends."""
    before = PythonState(iteration, tensors=tensors)
    try:
        yield before
    finally:
        before.put_back()


# ── how each kind of thing is kept ──────────────────────────────────────────────────────────────────


def _put_back(kept: _Noted) -> None:
    if kept.changes():
        kept.put_back()


def _of(path: Path, thing: Any) -> Iterable[_Noted]:
    if is_a(thing, dict):
        yield _of_dict(path, thing)
    elif is_a(thing, list):
        yield _of_list(path, thing)
    elif is_a(thing, set | deque):
        yield _of_collection(path, thing)
    elif is_a(thing, CellType):
        yield _of_cell(path, thing)
    elif is_a(thing, np.ndarray) and thing.nbytes <= _LARGEST:
        yield _of_array(path, thing)
    elif is_a(thing, FunctionType):
        if is_of_user(thing):
            yield _of_names(path, thing.__globals__, globals_in(thing.__code__, stored=True))
    elif (state := _state_of(thing)) is not None:
        yield _of_state(path, *state)
    if is_a(thing, Tensor):
        yield _of_dict(path, attributes_of(thing), passed_by=HOLD)
        return
    own = None if is_a(thing, FunctionType | type) else own_attributes(thing)
    if own is not None and not is_of_python(type(thing)):
        yield _of_dict(path, own)


def _of_owner(iteration: Iteration) -> Iterable[_Noted]:
    """Yield the containers and numbers of the object whose method the iteration is: a trainer."""
    owner = getattr(iteration.module, "owner", None)
    if not is_a(owner, ReferenceType) or (thing := owner()) is None:
        return

    def parts(part: Any) -> Parts:
        """Yield what the walk goes on to: not to models, data and what else libraries hold."""
        kind = type(part)
        if (base := container_of(part)) is not None:
            found = entries_of(part, base) if base.__len__(part) <= _MOST_ENTRIES else None
        elif part is thing or is_of_user_class(kind) or module_of(kind) in _RECORDS:
            found = [*(own_attributes(part) or {}).items()]
        else:
            return
        yield from ((key, each) for key, each in found or () if not is_a(each, _OTHERS))

    for path, part in reachable(thing, parts):
        yield from _of(("self", *path), part)


def _of_module(name: str) -> Iterable[_Noted]:
    """Yield the tables that a library's module keeps for its classes."""
    for key, thing in list(vars(sys.modules.get(name, object)).items()):
        if is_one_of(type(thing), (dict, list, set)) and not key.startswith("__"):
            yield from _of((name, key), thing)


# Containers are asked as Python's own: a method of a user's class may do anything.


def _of_dict(path: Path, thing: dict[Any, Any], passed_by: object = MISSING) -> _Noted:
    """Note a dict, but for one of its entries.

    passed_by: the entry of an offloaded tensor's attributes in which memplan keeps who has its values. It
        goes together with the tensor's class and stays what it is: put back, it would name one who has none.
    """
    base = container_of(thing)
    known = [(key, part) for key, part in base.items(thing) if not is_same_key(key, passed_by)]
    names = {_key(key) for key, _part in known}

    def changes() -> list[object]:
        now = {_key(key): part for key, part in base.items(thing) if not is_same_key(key, passed_by)}
        changed = [key for key, part in known if now.get(_key(key), MISSING) is not part]
        added = (key for key in base.__iter__(thing) if not is_same_key(key, passed_by))
        return [*changed, *(key for key in added if _key(key) not in names)]

    def put_back() -> None:
        stays = [(key, part) for key, part in base.items(thing) if is_same_key(key, passed_by)]
        base.clear(thing)
        for key, part in (*known, *stays):
            base.__setitem__(thing, key, part)

    return _Noted(path, changes, put_back)


def _key(key: object) -> object:
    """Return a simple key itself, for any other something that is equal as long as it is the same object."""
    return key if type(key) is str or is_simple(key) else (MISSING, id(key))


def _of_class(path: Path, kind: type) -> _Noted:
    """Note a class's attributes that are not methods."""
    known = {name: thing for name, thing in class_entries(kind).items() if not name.startswith("__")}
    known = {name: thing for name, thing in known.items() if class_entry(type(thing), "__get__") is MISSING}

    def changes() -> list[object]:
        return [name for name in known if class_entries(kind).get(name) is not known[name]]

    def put_back() -> None:
        for name, thing in known.items():
            if class_entries(kind).get(name) is not thing:
                type.__setattr__(kind, name, thing)

    return _Noted(path, changes, put_back)


def _of_list(path: Path, thing: list[Any]) -> _Noted:
    known = list(list.__iter__(thing))

    def put_back() -> None:
        list.__setitem__(thing, slice(None), known)

    return _Noted(path, lambda: [] if _same(thing, known) else [""], put_back)


def _of_collection(path: Path, thing: Any) -> _Noted:
    base = container_of(thing)
    known = list(base.__iter__(thing))

    def put_back() -> None:
        base.clear(thing)
        (base.update if base is set else base.extend)(thing, known)

    def changes() -> list[object]:
        if base is set:  # which has no order
            return [] if {*map(id, base.__iter__(thing))} == {*map(id, known)} else [""]
        return [] if _same(thing, known) else [""]

    return _Noted(path, changes, put_back)


def _of_cell(path: Path, thing: CellType) -> _Noted:
    known = cell_contents(thing)

    def put_back() -> None:
        if known:
            thing.cell_contents = known[0]
        else:
            del thing.cell_contents

    return _Noted(path, lambda: [] if _same(cell_contents(thing), known) else [""], put_back)


def _of_names(path: Path, thing: dict[str, Any], names: Iterable[str]) -> _Noted:
    """Note some entries of a dict that holds much else: a module's globals."""
    known = {name: thing[name] for name in names if name in thing}

    def changes() -> list[object]:
        return [name for name in known if thing.get(name) is not known[name]]

    return _Noted(path[:-1], changes, lambda: thing.update(known))


def _of_array(path: Path, thing: np.ndarray[Any, Any]) -> _Noted:
    known = thing.copy()

    def put_back() -> None:
        thing[...] = known

    return _Noted(
        path,
        lambda: [] if np.array_equal(thing, known, equal_nan=thing.dtype.kind in "fc") else [""],
        put_back,
    )


def _of_tensors(iteration: Iteration, reached: Iterable[tuple[Path, Any]]) -> Iterable[_Noted]:
    """Yield the tensors that attributes of the module hold, and the smaller ones that its code alone
    reaches.
    """
    module, inputs = iteration.module, tensors_in(iteration.inputs)
    own = {id(tensor) for tensor in (*module.parameters(), *module.buffers(), *inputs.values())}
    held = {id(thing) for _path, thing in reachable({"module": module}) if is_a(thing, Tensor)}
    for path, thing in reached:
        if not is_a(thing, Tensor) or is_a(thing, FakeTensor) or id(thing) in own:
            continue
        if thing.layout != torch.strided:  # of an input the parts count; any other is refused in a trace
            continue
        if id(thing) in held or thing.nbytes <= _LARGEST:
            yield _of_tensor(path, thing)


def _of_tensor(path: Path, thing: Tensor) -> _Noted:
    known = SavedTensor(thing)

    return _Noted(path, lambda: [""] if known.has_changed() else [], known.put_back)


def _of_state(path: Path, whose: str, read: Callable[[], Any], write: Callable[[Any], Any]) -> _Noted:
    known = pickle.dumps(read())
    return _Noted(
        path,
        lambda: [] if pickle.dumps(read()) == known else [""],
        lambda: write(pickle.loads(known)),
        draws=whose,
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


PYTHON_NUMBERS, NUMPY_NUMBERS = "Python's random numbers", "NumPy's random numbers"


def _of_generators() -> Iterable[_Noted]:
    yield _of_state((PYTHON_NUMBERS,), PYTHON_NUMBERS, random.getstate, random.setstate)
    yield _of_state((NUMPY_NUMBERS,), NUMPY_NUMBERS, np.random.get_state, np.random.set_state)


def _same(one: Any, other: Any) -> bool:
    first, second = (list(container_of(each).__iter__(each)) for each in (one, other))
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))
