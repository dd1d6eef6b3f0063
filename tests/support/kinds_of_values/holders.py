"""The table of kinds, and classes whose objects hold a value in one way or another."""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import threading
from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import nn

KINDS: dict[str, Callable[[Any], tuple[Callable[[Any], Any], Callable[[], Any]]]] = {}
TABLE = {"factor": 1.0}
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("factor", default=1.0)
THREAD = threading.local()
THREAD.factor = 1.0


def kind(make: Any) -> Any:
    KINDS[make.__name__] = make
    return make


def attribute_of(holder: Callable[[Any], Any]) -> Any:
    """A factor that is an attribute of what `holder` gives the module."""

    def make(m):
        m.held = holder(m)

        def change():
            m.held.factor = 3.0

        return (lambda self: self.held.factor), change

    return make


class Plain:
    owner: object

    def __init__(self) -> None:
        self.factor = 1.0


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor: Any = 1.0


@dataclasses.dataclass
class Data:
    factor: float = 1.0
    inner: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    factor: float = 1.0


@dataclasses.dataclass(slots=True)
class SlottedData:
    factor: float = 1.0


class Row(NamedTuple):
    factor: float


class Mode(enum.Enum):
    SMALL = 1.0
    LARGE = 3.0


class Config:
    """Its attributes are the entries of a dict."""

    def __init__(self, **given):
        object.__setattr__(self, "_given", given)

    def __getattr__(self, name):
        try:
            return self._given[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self._given[name] = value


class Watching:
    """All attributes go through a method."""

    def __init__(self):
        self.factor = 1.0

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class Attributes(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Proxied:
    """A descriptor whose value stands elsewhere."""

    def __init__(self):
        self.value = 1.0

    def __get__(self, thing, kind=None):
        return self if thing is None else self.value


class WithDescriptor:
    factor = Proxied()


class WithProperty:
    def __init__(self):
        self._inner = {"factor": 1.0}

    @property
    def factor(self):
        return self._inner["factor"]


class OfClass:
    factor = 1.0

    @classmethod
    def read(cls):
        return cls.factor

    @staticmethod
    def of_global():
        return TABLE["factor"]


class Child(OfClass):
    pass


class Meta(type):
    factor = 1.0


class WithMeta(metaclass=Meta):
    pass


class Single:
    instance: Any = None

    @classmethod
    def get(cls):
        if cls.instance is None:
            cls.instance = cls()
        return cls.instance

    def __init__(self):
        self.factor = 1.0


class Called:
    def __init__(self):
        self.factor = 1.0

    def __call__(self):
        return self.factor


class Length:
    def __init__(self):
        self.n = 1

    def __len__(self):
        return self.n


class Compared:
    def __init__(self):
        self.n = 1

    def __eq__(self, other):
        return self.n == other

    def __hash__(self):
        return self.n

    def __bool__(self):
        return self.n > 1

    def __contains__(self, other):
        return self.n > other

    def __iter__(self):
        return iter([self.n])

    def __float__(self):
        return float(self.n)

    def __getitem__(self, key):
        return self.n

    def __index__(self):
        return self.n

    def __mul__(self, other):
        return self.n * other


class OtherCompared(Compared):
    pass


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.0)
        self.factor = 1.0

    def forward(self, x):
        return x * self.factor


for name, holder in {
    "an_object": Plain,
    "slots": Slotted,
    "a_dataclass": Data,
    "a_dataclass_with_slots": SlottedData,
    "a_namespace": lambda: Namespace(factor=1.0),
    "a_simple_namespace": lambda: SimpleNamespace(factor=1.0),
    "a_config_by_getattr": lambda: Config(factor=1.0),
    "a_getattribute": Watching,
    "a_dict_with_attributes": lambda: Attributes(factor=1.0),
    "a_thread_local": lambda: THREAD,
    "a_function_attribute": lambda: SimpleNamespace,
    "a_teacher": lambda: (Teacher(),)[0],
}.items():
    if name != "a_function_attribute":
        KINDS[name] = attribute_of(lambda _m, holder=holder: holder())
