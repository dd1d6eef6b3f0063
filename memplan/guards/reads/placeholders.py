"""Objects' view of tensors that a trace replaces by fake ones: attributes that the user has put on them,
and which of a batch's tensors are one object.

The fake ones carry the real ones' attributes. Parameters and buffers stay the same objects, so their
attributes are reads like others; a batch's tensors are others each time, so each batch is compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from ...torch_support.raw import MISSING, is_a
from ...torch_support.reach import Path
from ...torch_support.torch_fakes import FakeTensor
from ...torch_support.torch_tensors import HOLD, VERSION, attributes_of
from ...torch_support.unsupported import TraceError
from .contents import content
from .reader import users_place
from .reads import Difference, Fetch, same

_COUNTED = frozenset({VERSION})
"""Attributes that count on from iteration to iteration, whatever a plan does."""


class Holder(NamedTuple):
    """A variable outside of the batch that holds the input `name`: what fetch(thing, key) gives."""

    fetch: Fetch
    thing: Any
    key: Any
    name: str


class OfBatch:
    """Reads of a batch's tensors as objects, to be compared with those of another batch.

    attributes: by input and name.
    asked: inputs whose identity was asked for, in the order of the batch.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Start with no reads.

        tensors: those of the batch that is traced.
        """
        self.tensors = dict(tensors)
        self.written: set[tuple[str, str]] = set()
        self._attributes: dict[tuple[str, str], Any] = {}
        self._asked: set[str] = set()
        self._pattern: tuple[str, ...] = ()
        self.holders: dict[Path, Holder] = {}
        self._held: dict[tuple[str, int], tuple[Callable[[], Any], bool]] = {}

    def read(self, name: str, attribute: str) -> None:
        """Note a read of an input's attribute.

        Raises TraceError for a tensor: the plan would hold that of this batch.
        """
        # Set by this iteration before: what the batch brings is not what is read.
        if (name, attribute) in self.written:
            return
        value = vars(self.tensors[name]).get(attribute, MISSING)
        if is_a(value, Tensor):
            raise TraceError(
                f"{users_place()}reads {attribute}, a tensor that is an attribute of the input "
                f"{name}, which a plan would keep as it is now: give it to the module as an input of its own"
            )
        self._attributes[name, attribute] = content(value)

    def first(self, name: str) -> str:
        """Return the first input that is the same object as this one. Its identity counts from here on."""
        self._asked.add(name)
        self._pattern = self._pattern_of(self.tensors)
        thing = self.tensors[name]
        return next(each for each, tensor in self.tensors.items() if tensor is thing)

    def name_of(self, tensor: Tensor) -> str | None:
        """Return the name of the first input that is this tensor."""
        return next((name for name, each in self.tensors.items() if each is tensor), None)

    def is_one(self, name: str, thing: Tensor, now: Callable[[], Any]) -> bool:
        """Tell whether the input is this tensor, which is there outside of the batch.

        It counts from here on.

        now: returns the tensor that is there in a later iteration.
        """
        found = self.tensors[name] is thing
        self._held[name, id(thing)] = (now, found)
        return found

    def forget(self) -> None:
        """Let go of the batch."""
        self.tensors = {}

    def difference(self, tensors: Mapping[str, Tensor]) -> Difference | None:
        """Return the first of these reads that gives something else for the tensors of another batch."""
        for (name, attribute), value in self._attributes.items():
            now = content(vars(tensors[name]).get(attribute, MISSING))
            # `same` last: it knows that NaN is NaN, and methods, at a higher price.
            if now is not value and now != value and not same(now, value):
                return Difference((f"input {name}", attribute), now, value)
        for path, holder in self.holders.items():
            if (there := holder.fetch(holder.thing, holder.key)) is not tensors[holder.name]:
                return Difference(path, there, _Words(f"the input {holder.name}"))
        for (name, _key), (now, then) in self._held.items():
            # Either answer counts: the code branched on it.
            if (tensors[name] is now()) != then:
                shown = [_Words(f"{'that' if same else 'not that'} tensor") for same in (not then, then)]
                return Difference((f"input {name}",), *shown)
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
        """Return, for each input that was asked for, the first of these that is the same object."""
        asked = self._order(tensors)
        return tuple(next(each for each in asked if tensors[each] is tensors[name]) for name in asked)


class Placeholders:
    """The real tensors by the identity of their fakes, and what each is in the iteration."""

    def __init__(self, batch: OfBatch) -> None:
        self.batch = batch
        self._inputs: dict[int, tuple[Tensor, str]] = {}
        self._fakes: dict[str, Tensor] = {}
        self._own: dict[int, tuple[Tensor, Tensor, str]] = {}

    def put(self, own: Iterable[tuple[str, Tensor, Tensor]], inputs: Iterable[tuple[str, Tensor]]) -> None:
        """Register the fake tensors, and copy the real ones' attributes to them.

        own: parameters and buffers: name, real, fake.
        inputs: name, fake.
        """
        for name, real, fake in own:
            if real is not fake:
                # Both ids: code may hold the real one too. The entry holds both, so their ids stay theirs.
                self._own[id(fake)] = self._own[id(real)] = (fake, real, name)
                _carry(real, fake)
        for name, fake in inputs:
            self._inputs[id(fake)] = (fake, name)
            self._fakes[name] = fake
            if (real := self.batch.tensors[name]) is not fake:
                _carry(real, fake)

    def is_own(self, tensor: Tensor) -> bool:
        """Tell whether it is a parameter or a buffer, as itself or its fake."""
        return id(tensor) in self._own

    def read(self, fake: Any, attribute: str) -> tuple[Tensor, str] | None:
        """Report a read of a fake tensor's attribute.

        Returns the real tensor and its name if it is a parameter or a buffer whose attribute counts, else
        None. Raises TraceError.
        """
        found = self._inputs.get(id(fake)) or self._own.get(id(fake))
        if found is None:
            return None
        if attribute in _COUNTED:
            raise TraceError(
                f"{users_place()}reads {attribute} of {found[-1]}, which PyTorch counts up with every "
                "change: a plan would keep it as it is now. Count in a buffer"
            )
        if attribute == "__dict__":
            raise TraceError(
                f"{users_place()}reads all attributes of the tensor {found[-1]}: read each by its name"
            )
        of_buffer = attribute == "requires_grad" and id(fake) in self._own
        if of_buffer and not is_a(self._own[id(fake)][1], nn.Parameter):
            return self._own[id(fake)][1:]
        # PyTorch's own: shapes and dtypes, which a plan is for, or methods.
        if hasattr(Tensor, attribute):
            return None
        if id(fake) in self._inputs:
            self.batch.read(found[-1], attribute)
            return None
        _fake, real, name = self._own[id(fake)]
        return real, name

    def wrote(self, fake: Any, attribute: str) -> tuple[Tensor, str] | None:
        """Report that an attribute of a fake tensor was written.

        Returns the real tensor and its name if it is a parameter or a buffer, else None.
        """
        if (given := self._inputs.get(id(fake))) is not None:
            self.batch.written.add((given[1], attribute))
            return None
        found = self._own.get(id(fake))
        return None if found is None else found[1:]

    def input_of(self, given: Any, thing: Tensor) -> str | None:
        """Return the name of an input that is compared with a tensor that is there outside of the
        iteration.
        """
        found = self._inputs.get(id(given))
        # Other fakes are made by this iteration, so no later batch can be one of them.
        outside = not is_a(thing, FakeTensor) or self.is_own(thing)
        return found[1] if found is not None and outside else None

    def is_one(self, name: str, thing: Tensor, module: nn.Module) -> bool:
        """Tell whether the input is this tensor of the module's or from outside. It counts from here on."""
        if (own := self._own.get(id(thing))) is None:
            return self.batch.is_one(name, thing, lambda: thing)
        return self.batch.is_one(name, thing, partial(operator.attrgetter(own[2]), module))

    def name_of(self, thing: Any) -> str | None:
        """Return the name of the input that a fake tensor stands for."""
        found = self._inputs.get(id(thing))
        return None if found is None else found[1]

    def identity(self, thing: Any) -> Any:
        """Return the object by which a tensor's identity is compared.

        It is the same object for inputs that are one tensor, and for a parameter or a buffer and its fake
        tensor.
        """
        if (own := self._own.get(id(thing))) is not None:
            return own[1]
        found = self._inputs.get(id(thing))
        return thing if found is None else self._fakes[self.batch.first(found[1])]


class Compares(Protocol):
    """Interface of what compares objects as `is` does, and notes it."""

    stand_ins: Placeholders

    def read_same(self, one: Any, other: Any) -> bool: ...
    def read_identity(self, thing: Any) -> Any: ...


class Identity(int):
    """Result of `id` for a tensor: to compare it with that of another means `is`."""

    def __new__(cls, thing: Tensor, compares: Compares) -> Identity:
        made = super().__new__(cls, id(compares.read_identity(thing)))
        made._thing, made._compares = thing, compares
        return made

    _thing: Tensor
    _compares: Compares

    def __eq__(self, other: object) -> bool:
        if is_a(other, Identity):
            return self._compares.read_same(self._thing, other._thing)
        return self.number() == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        # Needed, as __eq__ removes it: a dict of ids first looks for the hash.
        return int.__hash__(self)

    def __add__(self, other: Any) -> Any:
        return self.number() + other

    def __sub__(self, other: Any) -> Any:
        return self.number() - other

    def __mod__(self, other: Any) -> Any:
        return self.number() % other

    def __lt__(self, other: Any) -> bool:
        return self.number() < other

    def __gt__(self, other: Any) -> bool:
        return self.number() > other

    def __format__(self, form: str) -> str:
        return format(self.number(), form)

    def number(self) -> int:
        """Return the number itself.

        Raises TraceError for an input: a plan would keep the number of this batch.
        """
        if (name := self._compares.stand_ins.name_of(self._thing)) is not None:
            raise TraceError(
                f"{users_place()}uses id() of the input {name} as a number or a key, which a plan "
                "would keep as it is now: compare tensors by `is`, or give the answer as an input"
            )
        return int(self)


class _Words(str):
    def __repr__(self) -> str:
        return str(self)


def _carry(real: Tensor, fake: Tensor) -> None:
    own = vars(fake)
    given = attributes_of(real)
    # Not HOLD: a fake with it would count as offloaded.
    own.update({name: value for name, value in given.items() if name not in own and name != HOLD})
