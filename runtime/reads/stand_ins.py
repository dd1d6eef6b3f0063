"""Tensors that a trace replaces by fake ones, where code reads them as objects: attributes that the user has
put on them, and which of a batch's tensors are one object.

The fake ones carry the real ones' attributes. Parameters and buffers stay the same objects, so their
attributes are reads like others; a batch's tensors are others each time, so each batch is compared.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..reach import Path
from ..refusals import TraceError, at_line
from ..torch_internals import VERSION
from .contents import MISSING, content
from .reader import users_place
from .reads import Difference, Fetch, same

_COUNTED = frozenset({VERSION})
"""What counts on from iteration to iteration, whatever a plan does."""


class Holder(NamedTuple):
    """A place outside of the batch that holds the input `name`: what fetch(thing, key) gives."""

    fetch: Fetch
    thing: Any
    key: Any
    name: str


class OfBatch:
    """What was read of a batch's tensors as objects, to be compared with that of another batch.

    attributes: by input and name. asked: inputs whose identity was asked for, in the order of the batch.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """tensors: those of the batch that is traced."""
        self.tensors = dict(tensors)
        self.written: set[tuple[str, str]] = set()
        self._attributes: dict[tuple[str, str], Any] = {}
        self._asked: set[str] = set()
        self._pattern: tuple[str, ...] = ()
        self.holders: dict[Path, Holder] = {}

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of the first input that is this tensor."""
        return next((name for name, each in self.tensors.items() if each is tensor), None)

    def read(self, name: str, attribute: str) -> None:
        """Raises TraceError for a tensor: the plan would hold that of this batch."""
        if (name, attribute) in self.written:
            return
        value = vars(self.tensors[name]).get(attribute, MISSING)
        if isinstance(value, Tensor):
            raise TraceError(
                f"{users_place(at_line)}reads {attribute}, a tensor that is an attribute of the input "
                f"{name}, which a plan would keep as it is now: give it to the module as an input of its own"
            )
        self._attributes[name, attribute] = content(value)

    def first(self, name: str) -> str:
        """The first input that is the same object as this one. Its identity counts from here on."""
        self._asked.add(name)
        self._pattern = self._pattern_of(self.tensors)
        thing = self.tensors[name]
        return next(each for each, tensor in self.tensors.items() if tensor is thing)

    def forget(self) -> None:
        """Lets go of the batch."""
        self.tensors = {}

    def difference(self, tensors: Mapping[str, Tensor]) -> Difference | None:
        """The first of these reads that gives something else for the tensors of another batch."""
        for (name, attribute), value in self._attributes.items():
            now = content(vars(tensors[name]).get(attribute, MISSING))
            if now is not value and now != value and not same(now, value):
                return Difference((f"input {name}", attribute), now, value)
        for path, holder in self.holders.items():
            if (there := holder.fetch(holder.thing, holder.key)) is not tensors[holder.name]:
                return Difference(path, there, _Words(f"the input {holder.name}"))
        if self._asked:
            for name, now, then in zip(
                self._order(tensors), self._pattern_of(tensors), self._pattern, strict=True
            ):
                if now != then:
                    shown = [
                        _Words("itself" if each == name else f"the input {each}") for each in (now, then)
                    ]
                    return Difference((f"input {name}",), *shown)
        return None

    def _order(self, tensors: Mapping[str, Tensor]) -> list[str]:
        return [name for name in tensors if name in self._asked]

    def _pattern_of(self, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        """For each input that was asked for, the first of these that is the same object."""
        asked = self._order(tensors)
        return tuple(next(each for each in asked if tensors[each] is tensors[name]) for name in asked)


class StandIns:
    """By the identity of a fake tensor, the real one and what it is in the iteration."""

    def __init__(self, batch: OfBatch) -> None:
        self.batch = batch
        self._inputs: dict[int, tuple[Tensor, str]] = {}
        self._fakes: dict[str, Tensor] = {}
        self._own: dict[int, tuple[Tensor, Tensor, str]] = {}

    def put(self, own: Iterable[tuple[str, Tensor, Tensor]], inputs: Iterable[tuple[str, Tensor]]) -> None:
        """own: parameters and buffers: name, real, fake. inputs: name, fake."""
        for name, real, fake in own:
            if real is not fake:
                self._own[id(fake)] = self._own[id(real)] = (fake, real, name)
                _carry(real, fake)
        for name, fake in inputs:
            self._inputs[id(fake)] = (fake, name)
            self._fakes[name] = fake
            if (real := self.batch.tensors[name]) is not fake:
                _carry(real, fake)

    def is_own(self, tensor: Tensor) -> bool:
        """Whether it is a parameter or a buffer, as itself or its stand-in."""
        return id(tensor) in self._own

    def read(self, fake: Any, attribute: str) -> tuple[Tensor, str] | None:
        """Of a parameter or a buffer the real one and its name, whose attribute counts. Raises TraceError."""
        found = self._inputs.get(id(fake)) or self._own.get(id(fake))
        if found is None:
            return None
        if attribute in _COUNTED:
            raise TraceError(
                f"{users_place(at_line)}reads {attribute} of {found[-1]}, which PyTorch counts up with every "
                "change: a plan would keep it as it is now. Count in a buffer"
            )
        if attribute == "__dict__":
            raise TraceError(
                f"{users_place(at_line)}reads all attributes of the tensor {found[-1]}: read each by its name"
            )
        if hasattr(Tensor, attribute):
            return None
        if id(fake) in self._inputs:
            self.batch.read(found[-1], attribute)
            return None
        _fake, real, name = self._own[id(fake)]
        return real, name

    def wrote(self, fake: Any, attribute: str) -> tuple[Tensor, str] | None:
        """Of a parameter or a buffer the real one and its name."""
        if (given := self._inputs.get(id(fake))) is not None:
            self.batch.written.add((given[1], attribute))
            return None
        found = self._own.get(id(fake))
        return None if found is None else found[1:]

    def identity(self, thing: Any) -> Any:
        """The same object for inputs that are one."""
        found = self._inputs.get(id(thing))
        return thing if found is None else self._fakes[self.batch.first(found[1])]


class _Words(str):
    def __repr__(self) -> str:
        return str(self)


def _carry(real: Tensor, fake: Tensor) -> None:
    own = vars(fake)
    own.update({name: value for name, value in vars(real).items() if name not in own and name != "_memplan"})
