"""The Python state that an iteration may change, put back: attributes, lists, closures, random generators.

Models count their iterations, keep hidden states, append to lists, install hooks at their first call. Traced
or compared, all that they can reach is afterwards what it was, the same objects with the same contents; what
had changed can be listed.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from ..model.attached import named_buffers
from ..model.iteration import Iteration, tensors_in
from ..torch_support.raw import (
    bases_of,
    is_a,
    is_one_of,
    module_of,
    own_attributes,
)
from ..torch_support.reach import (
    Parts,
    Path,
    container_of,
    entries_of,
    is_of_python,
    is_of_user_class,
    methods_of_user,
    parts_with_code,
    reachable,
    spelled,
)
from ..torch_support.torch_fakes import FakeTensor
from .kept import (
    LARGEST,
    NUMPY_NUMBERS,
    PYTHON_NUMBERS,
    Kept,
    kept,
    kept_class,
    kept_generators,
    kept_tensor,
)
from .saved import run_all

_RECORDS = ("transformers.trainer_callback",)
"""Modules of a library whose objects are a trainer's record of its training."""

_MOST_ENTRIES = 1000
"""A longer container of a trainer's is data."""

_OTHERS = (nn.Module, Tensor, torch.optim.Optimizer, torch.utils.data.DataLoader, torch.utils.data.Dataset)

_ROOTS = ("module", "loss_fn", "inputs")


class PythonState:
    """All that the iteration's code can reach, as it is now.

    tensors: note also those that attributes, containers and closures hold, and that are neither parameters,
        buffers nor inputs; of those that only code reaches the small ones, which are not data.
    """

    def __init__(self, iteration: Iteration, *, tensors: bool) -> None:
        self._things: list[Kept] = [*kept_generators()]
        self._of_optimizers: set[int] = set()  # identities of `Kept`: an optimizer's step changes these
        classes: dict[int, type] = {}
        modules: set[str] = set()
        roots = dict(zip(_ROOTS, (iteration.module, iteration.loss_fn, iteration.inputs), strict=True))
        reached = list(reachable(roots, parts_with_code))
        of_optimizers = {path for path, thing in reached if is_a(thing, torch.optim.Optimizer)}
        for path, thing in reached:
            noted = [*kept(path, thing)]
            self._things += noted
            if of_optimizers and (path in of_optimizers or path[:-1] in of_optimizers):
                of_optimizers.add(path)  # what an object holds comes after it
                self._of_optimizers.update(map(id, noted))
            for kind in bases_of(type(thing)):
                if id(kind) in classes:
                    continue
                classes[id(kind)] = kind
                if methods_of_user(kind):
                    self._things.append(kept_class(path, kind))
                if module_of(kind).partition(".")[0] != "torch" and not is_of_python(kind):
                    modules.add(module_of(kind))
        for name in sorted(modules):
            self._things += _of_module(name)
        self._of_owner = [*_of_owner(iteration)]
        self._things += self._of_owner
        self.tensors = [thing for _path, thing in reached if is_a(thing, Tensor)]
        if tensors:
            self._things += _of_tensors(iteration, reached)

    def changes(self) -> list[str]:
        """Return the paths of what is different now."""
        return _changes(self._things)

    def changes_of_code(self) -> list[str]:
        """Return the paths of what forward, loss and backward have changed."""
        return _changes(each for each in self._things if id(each) not in self._of_optimizers)

    def changes_of_objects(self) -> list[str]:
        """Return the paths of what is different now in the module, the loss and what they hold."""
        rooted = (each for each in self._things if each.path and each.path[0] in _ROOTS)
        return _changes(each for each in rooted if not each.draws)

    def changes_of_owner(self) -> list[str]:
        """Return the paths of what is different now in the owner of the iteration's function."""
        return _changes(self._of_owner)

    def drawn(self) -> bool:
        """Tell whether random numbers of Python, NumPy or a separate generator were drawn since."""
        return self.drawn_from() is not None

    def drawn_from(self, *whose: str) -> str | None:
        """Return whose random numbers were drawn since, among these or any."""
        found = (each.draws for each in self._things if each.draws and each.changes())
        return next((each for each in found if not whose or each in whose), None)

    def draws(self) -> bool:
        """Tell whether random numbers were drawn that are not PyTorch's."""
        return self.drawn_from(PYTHON_NUMBERS, NUMPY_NUMBERS) is not None

    def put_back(self) -> None:
        """Put back each thing that has changed, whatever the others raise."""
        run_all([each.put_back for each in self._things])


def _changes(things: Iterable[Kept]) -> list[str]:
    return [spelled((*each.path, part)) for each in things for part in each.changes()]


@contextmanager
def state_put_back(iteration: Iteration, *, tensors: bool = True) -> Generator[PythonState]:
    """Put back what the iteration has changed of Python's state when the context ends."""
    before = PythonState(iteration, tensors=tensors)
    try:
        yield before
    finally:
        before.put_back()


def _of_owner(iteration: Iteration) -> Iterable[Kept]:
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
        yield from kept(("self", *path), part)


def _of_module(name: str) -> Iterable[Kept]:
    """Yield the tables that a library's module keeps for its classes."""
    for key, thing in list(vars(sys.modules.get(name, object)).items()):
        if is_one_of(type(thing), (dict, list, set)) and not key.startswith("__"):
            yield from kept((name, key), thing)


def _of_tensors(iteration: Iteration, reached: Iterable[tuple[Path, Any]]) -> Iterable[Kept]:
    """Yield the tensors that attributes of the module hold, and the smaller ones that its code alone
    reaches.
    """
    module, inputs = iteration.module, tensors_in(iteration.inputs)
    tensors = (*module.parameters(), *named_buffers(module).values(), *inputs.values())
    own = {id(tensor) for tensor in tensors}
    held = {id(thing) for _path, thing in reachable({"module": module}) if is_a(thing, Tensor)}
    for path, thing in reached:
        if not is_a(thing, Tensor) or is_a(thing, FakeTensor) or id(thing) in own:
            continue
        if thing.layout != torch.strided:  # of an input the parts count; any other is refused in a trace
            continue
        if id(thing) in held or thing.nbytes <= LARGEST:
            yield kept_tensor(path, thing)
