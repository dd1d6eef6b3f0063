"""The state of modules that guards look at, read in one pass.

A complete check (guards.py) says what differs, and takes long. Nearly every iteration finds everything as the
last complete check left it: the same objects, and tensors of the same forms. To see that takes some µs per
module. Any other state has the complete check run, so a difference here refuses nothing by itself.

Objects are compared by identity, never by `==`, which may be anybody's code. Tensors and hooks are not held,
since they may be replaced and freed: their identities are noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..model.attached import Place
from ..torch_support.torch_fakes import no_torch_function
from ..torch_support.torch_modules import HOOK_REGISTERS, MODULE_REGISTERS
from ..torch_support.torch_tensors import any_has_hooks

_REGISTERS = (*MODULE_REGISTERS, *HOOK_REGISTERS)
_FORM = attrgetter("shape", "dtype", "device", "requires_grad")
_TRAINED = attrgetter("requires_grad")
_STRIDES: Any = Tensor.stride
_VALUES: Any = dict.values


class SimpleAttributes:
    """Attributes of modules, and whether they are the objects that were noted.

    rows: each module with the names of its attributes.
    """

    def __init__(self, rows: Iterable[tuple[nn.Module, Iterable[str]]]) -> None:
        rows = list(rows)
        self._modules = [module for module, _names in rows]
        self._own = [vars(module) for module in self._modules]
        self._sizes = list(map(len, self._own))
        self._entries = [
            (own, name) for own, (_module, names) in zip(self._own, rows, strict=True) for name in names
        ]
        self._known = self._read()

    def same(self) -> bool:
        """Tell whether all are the objects that were noted, and no module has more attributes or fewer."""
        now = self._read()
        return now is not None and self._known is not None and all(map(is_, now, self._known))

    def note(self) -> None:
        """Note the attributes as they are now: they were compared."""
        self._known = self._read()

    def _read(self) -> list[Any] | None:
        """Return the attributes as they are now; None if modules have other numbers of them than at first."""
        if list(map(len, self._own)) != self._sizes or not all(map(is_, map(vars, self._modules), self._own)):
            return None
        try:
            return [own[name] for own, name in self._entries]
        except KeyError:
            return None


class _State(NamedTuple):
    """State of modules and their tensors. objects: compared by identity. rest: compared by value."""

    objects: list[Any]
    rest: tuple[list[Any], ...]


class ModuleState:
    """Structure, modes, hooks and tensors of modules, and whether they are as they were noted.

    names: of the tensors whose modes are read.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        places: Mapping[str, tuple[nn.Module, str]],
        attached: Mapping[str, Place],
    ) -> None:
        """Start with nothing noted.

        places: by the name of each tensor its submodule, one of the modules, and its attribute.
        attached: by name where the tensors are that parameters hold as attributes.
        """
        self._modules, self._names = modules, [*places, *attached]
        self._attached = list(attached.values())
        number = {id(module): index for index, module in enumerate(modules)}
        held = [
            (name, (number[id(module)], kind, attribute))
            for name, (module, attribute) in places.items()
            for kind in MODULE_REGISTERS
            if attribute in vars(module)[kind]
        ]
        self._places = [place for _name, place in held]
        self.names = [name for name, _place in held]
        self._known: _State | None = None

    def modes(self) -> tuple[list[Any], list[bool]] | None:
        """Return which modules are in train mode, and which tensors require a gradient.

        Returns None if a tensor is missing.
        """
        own = list(map(vars, self._modules))
        try:
            tensors = [own[at][kind][name] for at, kind, name in self._places]
            with no_torch_function():  # an offloaded tensor stays where it is
                return [each.get("training") for each in own], list(map(_TRAINED, tensors))
        except (KeyError, AttributeError):  # the complete check says what is missing
            return None

    def unchanged(self) -> dict[str, Tensor] | None:
        """Return the tensors by name if all is as it was noted, else None."""
        if self._known is None or (found := self._read()) is None:
            return None
        (objects, rest), tensors = found
        known = self._known
        if len(objects) != len(known.objects) or not all(map(is_, objects, known.objects)):
            return None
        return dict(zip(self._names, tensors, strict=True)) if rest == known.rest else None

    def note(self, tensors: Mapping[str, Tensor]) -> None:
        """Note the state as it is now: it was checked, with these tensors by name."""
        found = self._read()
        by_attribute = found is not None and len(found[1]) == len(tensors)
        if found is not None and by_attribute and all(map(is_, found[1], tensors.values())):
            self._known = found[0]

    def forget(self) -> None:
        """Forget what was noted, so that the complete check runs next."""
        self._known = None

    def _read(self) -> tuple[_State, list[Tensor]] | None:
        """Return the state as it is now, and the tensors; None for one that can't be compared in this way."""
        own = list(map(vars, self._modules))
        try:
            registers = [each[name] for each in own for name in _REGISTERS]
            tensors: list[Tensor] = [own[at][kind][name] for at, kind, name in self._places]
            if any(name in own[at] for at, _kind, name in self._places):  # it hides the tensor
                return None
            attached = [place.get() for place in self._attached]
            tensors += attached
            with no_torch_function():  # an offloaded tensor stays where it is
                if any_has_hooks(tensors):
                    return None
                forms = list(map(_FORM, tensors))
                strides = list(map(_STRIDES, tensors))
            filled = list(filter(None, registers))
            held = list(map(id, chain(chain.from_iterable(map(_VALUES, filled)), attached)))
        except Exception:  # something is missing, or no tensor
            return None
        modes = [each.get("training") for each in own]
        forwards = [each.get("forward") for each in own]
        keys = list(chain.from_iterable(filled))
        objects = [*modes, *forwards, *map(type, self._modules), *map(type, tensors)]
        return _State(objects, (list(map(len, registers)), keys, held, forms, strides)), tensors
