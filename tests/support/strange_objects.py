"""Objects of a user's classes, all of whose special methods raise once the classes are armed.

`AskedError` is no Exception, so that no `except Exception` on the way hides who has asked.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, UserDict, deque
from typing import Any, NamedTuple

import torch
from torch import nn

METHODS = [
    "__repr__",
    "__str__",
    "__format__",
    "__bytes__",
    "__hash__",
    "__bool__",
    "__len__",
    "__length_hint__",
    "__iter__",
    "__next__",
    "__reversed__",
    "__contains__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__missing__",
    "__getattr__",
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__dir__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__call__",
    "__index__",
    "__int__",
    "__float__",
    "__complex__",
    "__round__",
    "__add__",
    "__radd__",
    "__mul__",
    "__rmul__",
    "__sub__",
    "__neg__",
    "__or__",
    "__and__",
    "__array__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__copy__",
    "__deepcopy__",
    "__sizeof__",
    "__enter__",
    "__exit__",
    "__get__",
    "__set__",
    "__delete__",
    "__set_name__",
    "__fspath__",
    "__buffer__",
    "__await__",
    "__instancecheck__",
    "__subclasscheck__",
    "keys",
    "values",
    "items",
    "get",
    "copy",
    "pop",
    "update",
    "index",
    "count",
    "append",
    "sort",
    "union",
]
PROPERTIES = ["__doc__", "__torch_function__", "__array_interface__", "nbytes", "shape", "loss"]


class AskedError(BaseException):
    """A special method was called."""


def refusing(name: str) -> Any:
    def refuse(*_given: Any, **_named: Any) -> Any:
        raise AskedError(name)

    return refuse


def arm(kind: type) -> None:
    """Make every special method of a class raise."""
    for name in METHODS:
        type.__setattr__(kind, name, refusing(name))
    for name in PROPERTIES:
        type.__setattr__(kind, name, property(refusing(name)))


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    factor = 1.0


class Slotted:
    __slots__ = ("held", "never_set")

    def __init__(self) -> None:
        self.held = 1.0


@dataclasses.dataclass
class Record:
    value: float = 1.0


class Pair(NamedTuple):
    one: int = 1
    two: str = "b"


class OfPair(Pair):
    pass


class Color(enum.Enum):
    RED = 1


class Attributes(dict[str, Any]):
    """As the configurations of many projects."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Lazy:
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Irreps(tuple[Any, ...]):
    """As e3nn's: a tuple whose length can't be asked for."""

    def __len__(self) -> int:
        raise NotImplementedError


def strange_objects() -> dict[str, Any]:
    """Return such objects by name; their classes are armed."""
    made: dict[str, Any] = {
        "of a metaclass": OfMeta(),
        "slots": Slotted(),
        "record": Record(),
        "pair": OfPair(),
    }
    made["member"] = Color.RED
    for base, given in (
        *((dict, {"a": 1}), (list, [1, 2]), (tuple, (1, 2)), (set, {1}), (frozenset, {1}), (str, "ab")),
        *((int, 3), (float, 1.5), (complex, 1j), (bytes, b"q"), (OrderedDict, {"b": 2}), (deque, [3])),
        *((UserDict, {"c": 1}), (Exception, "x")),
    ):
        made[base.__name__] = type(
            "Strange", (base,), {"__class__": property(refusing("__class__")), "__module__": __name__}
        )(given)
    made["object"] = type(
        "Strange", (), {"__class__": property(refusing("__class__")), "__module__": __name__}
    )()
    for thing in list(made.values()):
        arm(type(thing))
    made["a class"] = OfMeta
    arm(Meta)
    return made | {"attributes": Attributes(factor=1.0), "lazy": Lazy(), "irreps": Irreps((1, 2))}


STRANGE: Any = list(strange_objects().values())
NAMED: Any = dict(enumerate(STRANGE))


def passed(_things: Any, x: torch.Tensor) -> torch.Tensor:
    return x


class Holder(nn.Module):
    """Meets strange objects in attributes, containers, globals, a closure, a default and in its batch; eager
    PyTorch calls none of their methods."""

    of_class = (STRANGE[3],)

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.things, self.named = nn.Linear(8, 8), [*STRANGE], {"a": [{"b": tuple(STRANGE)}]}
        own = vars(self)
        for number, thing in enumerate(STRANGE):
            own[f"thing{number}"] = thing
        self.attributes, inner = Attributes(factor=1.0), STRANGE[-1]

        def closed(x: torch.Tensor, things: Any = STRANGE) -> torch.Tensor:
            return passed((inner, things[0]), x)

        self.closed = closed

    def forward(self, x: torch.Tensor, extra: Any) -> torch.Tensor:
        for thing in self.things:
            same = thing is STRANGE[0]
            kind = type(thing)
        for number in range(len(STRANGE)):
            passed(object.__getattribute__(self, "__dict__")[f"thing{number}"], x)
        first, *others = NAMED[0], NAMED[1], self.thing2, self.of_class[0], self.named["a"][0]["b"][1]
        pair = (first, others, same, kind, extra, self.thing5)
        return passed(pair, self.closed(self.linear(x))).square().mean() * self.attributes.factor
