"""Kinds of values that a model's code can read from outside, each with a change to it.

A kind gives a model's `read`, which returns the factor 1 or 3, and a function that changes it.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import decimal
import enum
import fractions
import functools
import itertools
import json
import logging
import multiprocessing
import operator
import os
import queue
import sys
import threading
import types
import weakref
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

KINDS: dict[str, Callable[[Any], tuple[Callable[[Any], Any], Callable[[], Any]]]] = {}
FACTOR: Any = 1.0
TABLE = {"factor": 1.0}
TENSOR = torch.tensor(1.0)
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("factor", default=1.0)
THREAD = threading.local()
THREAD.factor = 1.0
settings: Any = ModuleType("settings_of_a_user")
settings.__file__ = __file__
sys.modules["settings_of_a_user"] = settings


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
    def __init__(self) -> None:
        self.factor = 1.0


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0


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


@kind
def attribute(m):
    m.factor = 1.0
    return (lambda self: self.factor), lambda: setattr(m, "factor", 3.0)


@kind
def private_attribute(m):
    m._factor = 1.0
    return (lambda self: self._factor), lambda: setattr(m, "_factor", 3.0)


@kind
def attribute_by_getattr(m):
    m.factor, m.which = 1.0, "factor"
    return (lambda self: getattr(self, self.which)), lambda: setattr(m, "factor", 3.0)


@kind
def which_attribute(m):
    m.factor, m.other, m.which = 1.0, 3.0, "factor"
    return (lambda self: getattr(self, self.which)), lambda: setattr(m, "which", "other")


@kind
def attribute_with_default(m):
    return (lambda self: getattr(self, "factor", 1.0)), lambda: setattr(m, "factor", 3.0)


@kind
def attribute_that_hasattr_asks_for(m):
    return (lambda self: 3.0 if hasattr(self, "large") else 1.0), lambda: setattr(m, "large", None)


@kind
def attribute_that_is_tried(m):
    def read(self):
        try:
            return self.factor
        except AttributeError:
            return 1.0

    return read, lambda: setattr(m, "factor", 3.0)


@kind
def attribute_deleted(m):
    m.small = None
    return (lambda self: 1.0 if hasattr(self, "small") else 3.0), lambda: delattr(m, "small")


@kind
def vars_of(m):
    m.factor = 1.0
    return (lambda self: vars(self)["factor"]), lambda: setattr(m, "factor", 3.0)


@kind
def dict_of(m):
    m.factor = 1.0
    return (lambda self: self.__dict__["factor"]), lambda: setattr(m, "factor", 3.0)


@kind
def dict_of_get(m):
    m.held = Plain()
    return (lambda self: self.held.__dict__.get("factor")), lambda: setattr(m.held, "factor", 3.0)


@kind
def attrgetter(m):
    m.held = Plain()
    get = operator.attrgetter("factor")
    return (lambda self: get(self.held)), lambda: setattr(m.held, "factor", 3.0)


@kind
def methodcaller(m):
    m.held = Called()
    call = operator.methodcaller("__call__")
    return (lambda self: call(self.held)), lambda: setattr(m.held, "factor", 3.0)


@kind
def a_property(m):
    m.held = WithProperty()
    return (lambda self: self.held.factor), lambda: m.held._inner.update(factor=3.0)


@kind
def a_descriptor(m):
    m.held = WithDescriptor()
    before = WithDescriptor.__dict__["factor"]
    before.value = 1.0
    return (lambda self: self.held.factor), lambda: setattr(before, "value", 3.0)


@kind
def a_class_attribute(m):
    OfClass.factor = 1.0
    m.held = Child()
    return (lambda self: self.held.factor), lambda: setattr(OfClass, "factor", 3.0)


@kind
def a_class_attribute_shadowed(m):
    OfClass.factor = 1.0
    m.held = Child()
    return (lambda self: self.held.factor), lambda: setattr(m.held, "factor", 3.0)


@kind
def a_class_attribute_of_a_class(m):
    OfClass.factor = 1.0
    return (lambda self: Child.factor), lambda: setattr(OfClass, "factor", 3.0)


@kind
def a_class_attribute_set_later(m):
    if "factor" in vars(Child):
        del Child.factor
    OfClass.factor = 1.0

    def change():
        Child.factor = 3.0

    return (lambda self: Child().factor), change


@kind
def a_classmethod(m):
    OfClass.factor = 1.0
    return (lambda self: OfClass.read()), lambda: setattr(OfClass, "factor", 3.0)


@kind
def a_staticmethod(m):
    TABLE["factor"] = 1.0
    return (lambda self: OfClass.of_global()), lambda: TABLE.update(factor=3.0)


@kind
def a_metaclass(m):
    Meta.factor = 1.0
    return (lambda self: WithMeta.factor), lambda: setattr(Meta, "factor", 3.0)


@kind
def a_singleton(m):
    Single.instance = None
    Single.get()
    return (lambda self: Single.get().factor), lambda: setattr(Single.instance, "factor", 3.0)


@kind
def another_singleton(m):
    Single.instance = Single()

    def change():
        Single.instance = Single()
        Single.instance.factor = 3.0

    return (lambda self: Single.get().factor), change


@kind
def a_method_replaced(m):
    m.held = Called()
    return (lambda self: self.held()), lambda: setattr(Called, "__call__", lambda self: 3.0 * self.factor)


@kind
def a_method_of_the_class_replaced(m):
    class Local:
        def factor(self):
            return 1.0

    m.held = Local()
    return (lambda self: self.held.factor()), lambda: setattr(Local, "factor", lambda self: 3.0)


@kind
def an_object_of_another_class(m):
    m.held = Compared()
    return (
        (lambda self: 3.0 if isinstance(self.held, OtherCompared) else 1.0),
        lambda: setattr(m, "held", OtherCompared()),
    )


@kind
def the_class_of_an_object(m):
    m.held = Compared()
    return (
        (lambda self: 3.0 if isinstance(self.held, OtherCompared) else 1.0),
        lambda: setattr(m.held, "__class__", OtherCompared),
    )


for operation, text in {
    "equality": "3.0 if self.held == 3 else 1.0",
    "truth": "3.0 if self.held else 1.0",
    "membership": "3.0 if 2 in self.held else 1.0",
    "iteration": "[float(each) for each in self.held][0]",
    "conversion": "float(self.held)",
    "items": "float(self.held[0])",
    "index": "float(operator.index(self.held))",
    "product": "self.held * 1.0",
    "hash": "float(hash(self.held))",
    "unpacking": "float([*self.held][0])",
}.items():

    def made(m, text=text):
        m.held = Compared()
        names: dict[str, Any] = {"operator": operator}
        exec(f"def read(self):\n    return {text}\n", names)  # code without a source too
        return names["read"], lambda: setattr(m.held, "n", 3)

    KINDS[f"own_{operation}"] = made


@kind
def own_length(m):
    m.held = Length()
    return (lambda self: float(len(self.held))), lambda: setattr(m.held, "n", 3)


@kind
def own_equality_with_a_source(m):
    m.held = Compared()
    return (lambda self: 3.0 if self.held == 3 else 1.0), lambda: setattr(m.held, "n", 3)


@kind
def own_iteration_with_a_source(m):
    m.held = Compared()

    def read(self):
        for each in self.held:
            return float(each)
        return None

    return read, lambda: setattr(m.held, "n", 3)


# ── containers ──────────────────────────────────────────────────────────────────────────────────────


def container(make, read, change):
    def kind_of(m):
        m.held = make()
        return read, lambda: change(m.held)

    return kind_of


KINDS |= {
    "a_list_item": container(lambda: [1.0], lambda self: self.held[0], lambda c: c.__setitem__(0, 3.0)),
    "a_list_length": container(lambda: [0], lambda self: float(len(self.held)), lambda c: c.extend([0, 0])),
    "a_list_sum": container(lambda: [1.0], lambda self: sum(self.held), lambda c: c.append(2.0)),
    "a_list_slice": container(lambda: [1.0], lambda self: sum(self.held[:2]), lambda c: c.append(2.0)),
    "a_list_of_objects": container(
        lambda: [Called()], lambda self: sum(each() for each in self.held), lambda c: c.extend([Called()] * 2)
    ),
    "an_object_in_a_list": container(
        lambda: [Plain()],
        lambda self: sum(each.factor for each in self.held),
        lambda c: setattr(c[0], "factor", 3.0),
    ),
    "a_list_in_a_loop": container(
        lambda: [1.0],
        lambda self: functools.reduce(operator.mul, [each * 1.0 for each in self.held]),
        lambda c: c.append(3.0),
    ),
    "a_list_emptied": container(lambda: [1.0], lambda self: 1.0 if self.held else 3.0, lambda c: c.clear()),
    "a_list_inside": container(
        lambda: [[1.0]], lambda self: float(max(map(max, self.held))), lambda c: c[0].append(3.0)
    ),
    "a_tuple_replaced": lambda m: (
        setattr(m, "held", (1.0, 2.0)) or (lambda self: self.held[0], lambda: setattr(m, "held", (3.0, 2.0)))
    ),
    "unpacked": container(
        lambda: [1.0, 0], lambda self: (lambda a, b: a)(*self.held), lambda c: c.__setitem__(0, 3.0)
    ),
    "a_dict_item": container(lambda: {"a": 1.0}, lambda self: self.held["a"], lambda c: c.update(a=3.0)),
    "a_dict_get": container(dict, lambda self: self.held.get("a", 1.0), lambda c: c.update(a=3.0)),
    "a_new_key": container(dict, lambda self: 3.0 if "a" in self.held else 1.0, lambda c: c.update(a=0)),
    "values_of_a_dict": container(
        lambda: {"a": 1.0}, lambda self: sum(self.held.values()), lambda c: c.update(b=2.0)
    ),
    "items_of_a_dict": container(
        lambda: {"a": 1.0},
        lambda self: sum(value for _key, value in self.held.items()),
        lambda c: c.update(b=2.0),
    ),
    "keywords_of_a_dict": container(
        lambda: {"a": 1.0}, lambda self: (lambda a=0.0, b=0.0: a + b)(**self.held), lambda c: c.update(b=2.0)
    ),
    "a_dict_merged": container(
        lambda: {"a": 1.0}, lambda self: sum({**self.held}.values()), lambda c: c.update(b=2.0)
    ),
    "an_ordered_dict": container(
        lambda: collections.OrderedDict(a=1.0, b=3.0),
        lambda self: next(iter(self.held.values())),
        lambda c: c.move_to_end("a"),
    ),
    "order_of_a_dict": container(
        lambda: {"a": 1.0, "b": 3.0},
        lambda self: list(self.held.values())[0],  # noqa: RUF015
        lambda c: c.update(a=c.pop("a")),
    ),
    "a_default_dict": container(
        lambda: collections.defaultdict(lambda: 1.0), lambda self: self.held["a"], lambda c: c.update(a=3.0)
    ),
    "a_counter": container(
        lambda: collections.Counter(a=1), lambda self: float(self.held["a"]), lambda c: c.update(a=2)
    ),
    "most_common": container(
        lambda: collections.Counter(a=1),
        lambda self: float(self.held.most_common(1)[0][1]),
        lambda c: c.update(a=2),
    ),
    "a_chain_map": container(
        lambda: collections.ChainMap({}, {"a": 1.0}),
        lambda self: self.held["a"],
        lambda c: c.maps[1].update(a=3.0),
    ),
    "a_user_dict": container(
        lambda: collections.UserDict(a=1.0), lambda self: self.held["a"], lambda c: c.update(a=3.0)
    ),
    "a_user_list": container(
        lambda: collections.UserList([1.0]), lambda self: self.held[0], lambda c: c.__setitem__(0, 3.0)
    ),
    "a_set": container(set, lambda self: 3.0 if "a" in self.held else 1.0, lambda c: c.add("a")),
    "a_set_with_not": container(set, lambda self: 1.0 if "a" not in self.held else 3.0, lambda c: c.add("a")),
    "a_set_difference": container(
        lambda: {1}, lambda self: float(len(self.held | {1})), lambda c: c.update({2, 3})
    ),
    "a_frozenset_replaced": lambda m: (
        setattr(m, "held", frozenset({1}))
        or (lambda self: float(max(self.held)), lambda: setattr(m, "held", frozenset({3})))
    ),
    "a_deque": container(
        lambda: collections.deque([1.0]), lambda self: self.held[-1], lambda c: c.append(3.0)
    ),
    "a_deque_summed": container(
        lambda: collections.deque([1.0]), lambda self: sum(self.held), lambda c: c.append(2.0)
    ),
    "a_bytearray": container(
        lambda: bytearray(b"\x01"), lambda self: float(self.held[0]), lambda c: c.__setitem__(0, 3)
    ),
    "a_bytearray_summed": container(
        lambda: bytearray(b"\x01"), lambda self: float(sum(self.held)), lambda c: c.__setitem__(0, 3)
    ),
    "an_array": container(
        lambda: array.array("d", [1.0]), lambda self: self.held[0], lambda c: c.__setitem__(0, 3.0)
    ),
    "an_array_summed": container(
        lambda: array.array("d", [1.0]), lambda self: sum(self.held), lambda c: c.__setitem__(0, 3.0)
    ),
    "a_memoryview": container(
        lambda: memoryview(bytearray(b"\x01")),
        lambda self: float(self.held[0]),
        lambda c: c.__setitem__(0, 3),
    ),
    "a_numpy_array": container(
        lambda: np.ones(2), lambda self: float(self.held[0]), lambda c: c.__setitem__(0, 3.0)
    ),
    "a_numpy_array_summed": container(
        lambda: np.ones(1), lambda self: float(self.held.sum()), lambda c: c.__setitem__(0, 3.0)
    ),
    "numpys_mean": container(
        lambda: np.ones(1), lambda self: float(np.mean(self.held)), lambda c: c.__setitem__(0, 3.0)
    ),
    "an_array_of_objects": container(
        lambda: np.array([1.0], dtype=object), lambda self: self.held[0], lambda c: c.__setitem__(0, 3.0)
    ),
    "from_numpy": container(
        lambda: np.ones(1, np.float32), lambda self: torch.tensor(self.held), lambda c: c.__setitem__(0, 3.0)
    ),
    "a_structured_array": container(
        lambda: np.ones(1, [("a", float)]),
        lambda self: float(self.held["a"][0]),
        lambda c: c["a"].__setitem__(0, 3.0),
    ),
    "ctypes_double": container(
        lambda: ctypes.c_double(1.0), lambda self: self.held.value, lambda c: setattr(c, "value", 3.0)
    ),
    "ctypes_array": container(
        lambda: (ctypes.c_double * 1)(1.0), lambda self: self.held[0], lambda c: c.__setitem__(0, 3.0)
    ),
    "a_shared_value": container(
        lambda: multiprocessing.Value("d", 1.0),
        lambda self: self.held.value,
        lambda c: setattr(c, "value", 3.0),
    ),
    "a_shared_array": container(
        lambda: multiprocessing.Array("d", [1.0]), lambda self: self.held[0], lambda c: c.__setitem__(0, 3.0)
    ),
    "a_mapping_proxy": lambda m: _proxy(m),
    "a_range_replaced": lambda m: (
        setattr(m, "held", range(1))
        or (lambda self: float(len(self.held)), lambda: setattr(m, "held", range(3)))
    ),
    "json_of_a_dict": container(
        lambda: {"a": 1.0}, lambda self: json.loads(json.dumps(self.held))["a"], lambda c: c.update(a=3.0)
    ),
    "a_copy_of_an_object": container(
        Plain, lambda self: copy.copy(self.held).factor, lambda c: setattr(c, "factor", 3.0)
    ),
    "a_deep_copy": container(
        lambda: {"a": Plain()},
        lambda self: copy.deepcopy(self.held)["a"].factor,
        lambda c: setattr(c["a"], "factor", 3.0),
    ),
    "asdict": container(
        Data, lambda self: dataclasses.asdict(self.held)["factor"], lambda c: setattr(c, "factor", 3.0)
    ),
    "a_sorted_list": container(
        lambda: [Called(), Called()],
        lambda self: sorted(self.held, key=lambda each: each.factor)[0](),
        lambda c: [setattr(each, "factor", 3.0) for each in c],
    ),
    "a_comparison_of_lists": container(
        lambda: [1], lambda self: 3.0 if self.held == [1, 2] else 1.0, lambda c: c.append(2)
    ),
    "a_format": container(
        lambda: {"a": 1.0}, lambda self: float(f"{self.held['a']}"), lambda c: c.update(a=3.0)
    ),
    "a_nested_dict": container(
        lambda: {"a": {"b": [1.0]}},
        lambda self: self.held["a"]["b"][0],
        lambda c: c["a"]["b"].__setitem__(0, 3.0),
    ),
    "an_alias": container(
        lambda: {"a": [1.0]},
        lambda self: (lambda a: a[0])(self.held["a"]),
        lambda c: c["a"].__setitem__(0, 3.0),
    ),
    "a_match": container(
        lambda: ["small"], lambda self: _matched(self.held), lambda c: c.__setitem__(0, "large")
    ),
    "zipped": container(
        lambda: [1.0],
        lambda self: sum(a * b for a, b in zip(self.held, [1.0], strict=True)),
        lambda c: c.__setitem__(0, 3.0),
    ),
    "enumerated": container(
        lambda: [1.0], lambda self: sum(b for _a, b in enumerate(self.held)), lambda c: c.append(2.0)
    ),
    "any_of": container(lambda: [0], lambda self: 3.0 if any(self.held) else 1.0, lambda c: c.append(1)),
    "filtered": container(lambda: [1.0], lambda self: sum(filter(None, self.held)), lambda c: c.append(2.0)),
    "mapped": container(
        lambda: [Called()], lambda self: sum(map(_call, self.held)), lambda c: setattr(c[0], "factor", 3.0)
    ),
}


def _call(each):
    return each()


def _proxy(m):
    inner = {"a": 1.0}
    m.held = types.MappingProxyType(inner)
    return (lambda self: self.held["a"]), lambda: inner.update(a=3.0)


def _matched(held):
    match held:
        case ["small"]:
            return 1.0
        case _:
            return 3.0


# ── numbers of other kinds, replaced ────────────────────────────────────────────────────────────────


def replaced(one, other, read=lambda self: float(self.held)):
    def kind_of(m):
        m.held = one
        return read, lambda: setattr(m, "held", other)

    return kind_of


KINDS |= {
    "a_decimal": replaced(decimal.Decimal(1), decimal.Decimal(3)),
    "a_fraction": replaced(fractions.Fraction(1), fractions.Fraction(3)),
    "a_numpy_scalar": replaced(np.float32(1), np.float32(3)),
    "a_string": replaced("1", "3"),
    "bytes": replaced(b"1", b"3"),
    "a_bool": replaced(False, True, lambda self: 3.0 if self.held else 1.0),
    "true_for_one": replaced(1, True, lambda self: 3.0 if self.held is True else 1.0),
    "an_integer_for_a_float": replaced(1, 1.5, lambda self: 2.0 * self.held),
    "none": replaced(None, 3.0, lambda self: self.held or 1.0),
    "a_complex": replaced(1 + 0j, 3 + 0j, lambda self: abs(self.held)),
    "an_enum": replaced(Mode.SMALL, Mode.LARGE, lambda self: self.held.value),
    "an_enum_compared": replaced(
        Mode.SMALL, Mode.LARGE, lambda self: 1.0 if self.held is Mode.SMALL else 3.0
    ),
    "a_named_tuple": replaced(Row(1.0), Row(3.0), lambda self: self.held.factor),
    "a_frozen_dataclass": replaced(Frozen(1.0), Frozen(3.0), lambda self: self.held.factor),
    "a_dtype": replaced(
        torch.float32, torch.float64, lambda self: 1.0 if self.held == torch.float32 else 3.0
    ),
    "a_size": replaced(torch.Size([1]), torch.Size([3]), lambda self: float(self.held[0])),
    "an_object_replaced": replaced(Data(1.0), Data(3.0), lambda self: self.held.factor),
    "an_object_inside_replaced": replaced(
        Data(inner=Data(1.0)), Data(inner=Data(3.0)), lambda self: self.held.inner.factor
    ),
    "a_list_replaced": replaced([1.0], [3.0], lambda self: self.held[0]),
    "a_function_replaced": replaced(lambda: 1.0, lambda: 3.0, lambda self: self.held()),
    "a_builtin_replaced": replaced(min, max, lambda self: float(self.held(1, 3))),
    "a_class_replaced": replaced(
        Compared, OtherCompared, lambda self: 3.0 if self.held is OtherCompared else 1.0
    ),
    "a_partial_replaced": replaced(
        functools.partial(float, 1), functools.partial(float, 3), lambda self: self.held()
    ),
    "a_partial_of_a_function": replaced(
        functools.partial(lambda f: f, 1.0), functools.partial(lambda f: f, 3.0), lambda self: self.held()
    ),
    "a_bound_method": replaced(
        Data(1.0).__eq__, Data(3.0).__eq__, lambda self: 1.0 if self.held(Data(1.0)) else 3.0
    ),
}


@kind
def arguments_of_a_partial(m):
    held = {"factor": 1.0}
    m.held = functools.partial(lambda table: table["factor"], held)
    return (lambda self: self.held()), lambda: held.update(factor=3.0)


# ── functions, closures, globals ────────────────────────────────────────────────────────────────────


@kind
def a_global(m):
    globals()["FACTOR"] = 1.0
    return (lambda self: FACTOR), lambda: globals().update(FACTOR=3.0)


@kind
def a_global_by_globals(m):
    globals()["FACTOR"] = 1.0
    return (lambda self: globals()["FACTOR"]), lambda: globals().update(FACTOR=3.0)


@kind
def a_global_dict(m):
    TABLE["factor"] = 1.0
    return (lambda self: TABLE["factor"]), lambda: TABLE.update(factor=3.0)


@kind
def a_global_of_a_function(m):
    globals()["FACTOR"] = 1.0
    return (lambda self: _global()), lambda: globals().update(FACTOR=3.0)


def _global():
    return FACTOR


@kind
def an_imported_module(m):
    settings.factor = 1.0

    def read(self):
        import settings_of_a_user

        return settings_of_a_user.factor

    return read, lambda: setattr(settings, "factor", 3.0)


@kind
def imported_from_a_module(m):
    settings.factor = 1.0

    def read(self):
        from settings_of_a_user import factor

        return factor

    return read, lambda: setattr(settings, "factor", 3.0)


@kind
def a_module_of_sys_modules(m):
    settings.factor = 1.0
    return (lambda self: sys.modules["settings_of_a_user"].factor), lambda: setattr(settings, "factor", 3.0)


@kind
def a_closure(m):
    factor = 1.0

    def change():
        nonlocal factor
        factor = 3.0

    return (lambda self: factor), change


@kind
def a_closure_of_a_closure(m):
    factor = 1.0

    def inner():
        return factor

    def change():
        nonlocal factor
        factor = 3.0

    return (lambda self: inner()), change


@kind
def a_nested_function(m):
    m.factor = 1.0

    def read(self):
        def inner():
            return sum(self.factor for _each in range(1))

        return inner()

    return read, lambda: setattr(m, "factor", 3.0)


@kind
def a_default(m):
    held = [1.0]

    def read(self, given=held):
        return given[0]

    return read, lambda: held.__setitem__(0, 3.0)


@kind
def defaults_replaced(m):
    def inner(given=1.0):
        return given

    return (lambda self: inner()), lambda: setattr(inner, "__defaults__", (3.0,))


@kind
def keyword_defaults(m):
    def inner(*, given=1.0):
        return given

    return (lambda self: inner()), lambda: inner.__kwdefaults__.update(given=3.0)


@kind
def an_attribute_of_a_function(m):
    def inner():
        return inner.factor

    inner.factor = 1.0
    return (lambda self: inner()), lambda: setattr(inner, "factor", 3.0)


@kind
def the_code_of_a_function(m):
    def inner():
        return 1.0

    def other():
        return 3.0

    return (lambda self: inner()), lambda: setattr(inner, "__code__", other.__code__)


@kind
def the_code_of_a_method(m):
    class Local:
        def factor(self):
            return 1.0

    def other(self):
        return 3.0

    m.held = Local()
    return (lambda self: self.held.factor()), lambda: setattr(Local.factor, "__code__", other.__code__)


@kind
def a_decorated_function(m):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*given):
            return function(*given)

        return wrapper

    @decorate
    def inner(self):
        return self.factor

    m.factor = 1.0
    return (lambda self: inner(self)), lambda: setattr(m, "factor", 3.0)


@kind
def under_no_grad(m):
    @torch.no_grad()
    def inner(self):
        return self.factor

    m.factor = 1.0
    return (lambda self: inner(self)), lambda: setattr(m, "factor", 3.0)


@kind
def a_cached_function(m):
    TABLE["factor"] = 1.0

    @functools.lru_cache
    def inner():
        return TABLE["factor"]

    inner()

    def change():
        TABLE["factor"] = 3.0
        inner.cache_clear()

    return (lambda self: inner()), change


@kind
def a_generator_function(m):
    m.factor = 1.0

    def inner(self):
        yield self.factor

    return (lambda self: next(inner(self))), lambda: setattr(m, "factor", 3.0)


@kind
def a_context_manager(m):
    m.factor = 1.0

    @contextlib.contextmanager
    def inner(self):
        yield self.factor

    def read(self):
        with inner(self) as factor:
            return factor

    return read, lambda: setattr(m, "factor", 3.0)


@kind
def a_hook(m):
    m.factor = 1.0
    m.layer.register_forward_hook(lambda _module, _given, output: output * m.factor)
    return (lambda self: 1.0), lambda: setattr(m, "factor", 3.0)


@kind
def an_autograd_function(m):
    TABLE["factor"] = 1.0

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * TABLE["factor"]

        @staticmethod
        def backward(ctx, gradient):
            return gradient * TABLE["factor"]

    return (lambda self: Times.apply(self.layer.bias)), lambda: TABLE.update(factor=3.0)


@kind
def super_s_attribute(m):
    class Base:
        factor = 1.0

    class Local(Base):
        def read(self):
            return super().factor

    m.held = Local()
    return (lambda self: self.held.read()), lambda: setattr(Base, "factor", 3.0)


# ── surroundings ────────────────────────────────────────────────────────────────────────────────────


@kind
def a_context_variable(m):
    VARIABLE.set(1.0)
    return (lambda self: VARIABLE.get()), lambda: VARIABLE.set(3.0)


@kind
def the_environment(m):
    os.environ["MEMPLAN_TEST_FACTOR"] = "1"
    return (lambda self: float(os.environ["MEMPLAN_TEST_FACTOR"])), lambda: os.environ.update(
        MEMPLAN_TEST_FACTOR="3"
    )


@kind
def getenv(m):
    os.environ["MEMPLAN_TEST_FACTOR"] = "1"
    return (lambda self: float(os.getenv("MEMPLAN_TEST_FACTOR", "1"))), lambda: os.environ.update(
        MEMPLAN_TEST_FACTOR="3"
    )


@kind
def in_the_environment(m):
    os.environ.pop("MEMPLAN_TEST_FACTOR", None)
    return (
        (lambda self: 3.0 if "MEMPLAN_TEST_FACTOR" in os.environ else 1.0),
        lambda: os.environ.update(MEMPLAN_TEST_FACTOR="3"),
    )


@kind
def a_weak_reference(m):
    m.strong = Plain()
    m.held = weakref.ref(m.strong)
    return (lambda self: self.held().factor), lambda: setattr(m.strong, "factor", 3.0)


@kind
def another_weak_reference(m):
    m.strong, m.other = Plain(), Plain()
    m.other.factor = 3.0
    m.held = weakref.ref(m.strong)
    return (lambda self: self.held().factor), lambda: setattr(m, "held", weakref.ref(m.other))


@kind
def a_weak_dictionary(m):
    m.strong = Plain()
    m.held = weakref.WeakValueDictionary(a=m.strong)
    return (lambda self: self.held["a"].factor), lambda: setattr(m.strong, "factor", 3.0)


# ── tensors ─────────────────────────────────────────────────────────────────────────────────────────


def tensor(read, change=lambda t: t.fill_(3.0)):
    def kind_of(m):
        m.held = torch.tensor(1.0)
        return read, lambda: change(m.held)

    return kind_of


KINDS |= {
    "item": tensor(lambda self: self.held.item()),
    "float_of_a_tensor": tensor(lambda self: float(self.held)),
    "tolist": tensor(lambda self: self.held.tolist()),
    "truth_of_a_tensor": tensor(lambda self: 3.0 if self.held > 2 else 1.0),
    "a_tensor_in_the_graph": tensor(lambda self: self.held),
    "data_of_a_tensor": tensor(lambda self: self.held.item(), lambda t: t.data.fill_(3.0)),
    "numpys_view_of_a_tensor": tensor(lambda self: self.held.item(), lambda t: t.numpy().fill(3.0)),
    "numpy_of_a_tensor": tensor(lambda self: float(self.held.numpy())),
    "equal": tensor(lambda self: 3.0 if torch.equal(self.held, torch.tensor(3.0)) else 1.0),
    "int_of_a_tensor": tensor(lambda self: float(int(self.held))),
    "sum_of_a_tensor": tensor(lambda self: (self.held * 2).sum().item() / 2),
    "any_of_a_tensor": tensor(lambda self: 3.0 if (self.held > 2).any() else 1.0),
    "a_slice_of_a_tensor": tensor(lambda self: float(self.held.reshape(1)[0])),
    "index_by_a_tensor": tensor(lambda self: [0.0, 1.0, 2.0, 3.0][self.held.long()]),
    "places_in_a_tensor": tensor(lambda self: 1.0 + 2 * len((self.held > 2).reshape(1).nonzero())),
    "array_of_a_tensor": tensor(lambda self: float(np.asarray(self.held))),
    "list_of_what_follows": tensor(lambda self: (self.held + 0).tolist()),
    "equal_to_what_follows": tensor(lambda self: 3.0 if torch.equal(self.held, torch.ones(()) * 3) else 1.0),
    "requires_grad": tensor(
        lambda self: 3.0 if self.held.requires_grad else 1.0, lambda t: t.requires_grad_()
    ),
    "version_of_a_tensor": tensor(lambda self: 1.0 + self.held._version, lambda t: t.add_(0)),
    "grad_of_a_tensor": tensor(
        lambda self: 1.0 if self.held.grad is None else 3.0, lambda t: setattr(t, "grad", torch.ones(()))
    ),
    "what_a_tensor_carries": tensor(
        lambda self: getattr(self.held, "factor", 1.0), lambda t: setattr(t, "factor", 3.0)
    ),
    "a_tensor_replaced": lambda m: (
        setattr(m, "held", torch.tensor(1.0))
        or (lambda self: self.held.item(), lambda: setattr(m, "held", torch.tensor(3.0)))
    ),
    "a_tensor_in_a_list": container(
        lambda: [torch.tensor(1.0)], lambda self: self.held[0].item(), lambda c: c[0].fill_(3.0)
    ),
    "a_global_tensor": lambda m: (
        TENSOR.fill_(1.0) and (lambda self: float(TENSOR.tolist()), lambda: TENSOR.fill_(3.0))
    ),
    "an_iterator": container(
        lambda: itertools.chain([1.0] * 2, [3.0] * 9), lambda self: next(self.held), lambda c: None
    ),
    "a_tensor_that_is_another": lambda m: (
        setattr(m, "one", torch.tensor(1.0))
        or setattr(m, "two", m.one)
        or (lambda self: 1.0 if self.one is self.two else 3.0, lambda: setattr(m, "two", m.one.clone()))
    ),
}


@kind
def what_a_weight_carries(m):
    m.layer.weight.factor = 1.0

    def change():
        m.layer.weight.factor = 3.0

    return (lambda self: self.layer.weight.factor), change


@kind
def what_a_weight_carries_later(m):
    def change():
        m.layer.weight.factor = 3.0

    return (lambda self: getattr(self.layer.weight, "factor", 1.0)), change


@kind
def a_logger_s_level(m):
    log = logging.getLogger("a_log_of_a_user")
    log.setLevel(20)
    return (lambda self: 3.0 if log.isEnabledFor(10) else 1.0), lambda: log.setLevel(10)


@kind
def a_lock(m):
    m.held = threading.Lock()
    return (lambda self: 3.0 if self.held.locked() else 1.0), lambda: m.held.acquire()


@kind
def an_event(m):
    m.held = threading.Event()
    return (lambda self: 3.0 if self.held.is_set() else 1.0), lambda: m.held.set()


@kind
def a_queue(m):
    m.held = queue.SimpleQueue()
    return (lambda self: 1.0 + self.held.qsize()), lambda: m.held.put(1)


@kind
def a_loop_over_a_tensor(m):
    m.held = torch.tensor([True, False])
    return (lambda self: sum(1.0 for each in self.held if each)), lambda: m.held.fill_(True)


@kind
def a_mask_in_an_attribute(m):
    m.held = torch.tensor([True, False, True])
    return (lambda self: self.layer.bias[self.held].sum()), lambda: m.held.fill_(True)


@kind
def a_tensor_in_a_slot(m):
    m.held = Slotted()
    m.held.factor = torch.tensor([1.0, 2.0])

    def change():
        m.held.factor = torch.tensor([3.0, 2.0])

    return (lambda self: self.held.factor.max().item()), change


@kind
def in_a_circle(m):
    m.held = Plain()
    m.held.owner = m
    m.factor = 1.0

    def change():
        m.factor = 3.0

    return (lambda self: self.held.owner.factor), change


@kind
def in_a_function_that_knows_the_module(m):
    m.factor = torch.tensor(1.0)

    def change():
        m.factor = torch.tensor(3.0)

    return (lambda _self: m.factor.item()), change


def getter(read):
    """A number that a function written in C reads of the module."""

    def make(m):
        m.held = Plain()
        m.table = {"factor": 1.0}

        def change():
            m.held.factor = m.table["factor"] = 3.0

        return read, change

    return make


KINDS |= {
    "attrgetter": getter(lambda self: operator.attrgetter("held.factor")(self)),
    "attrgetter_of_two": getter(lambda self: operator.attrgetter("held.factor", "training")(self)[0]),
    "itemgetter": getter(lambda self: operator.itemgetter("factor")(self.table)),
    "itemgetter_and_attrgetter": getter(
        lambda self: operator.itemgetter("factor")(operator.attrgetter("table")(self))
    ),
    "methodcaller": getter(lambda self: operator.methodcaller("get", "factor", 2.0)(self.table)),
    "methodcaller_of_a_module": getter(
        lambda self: operator.methodcaller("told", scale=1.0)(HasMethod(self))
    ),
    "reduce_of_getattr": getter(lambda self: functools.reduce(getattr, ["held", "factor"], self)),
    "map_of_getattr": getter(lambda self: next(map(getattr, [self.held], ["factor"]))),
    "map_of_attrgetter": getter(lambda self: next(iter(map(operator.attrgetter("held.factor"), [self])))),
    "key_of_max": getter(lambda self: max([self], key=operator.attrgetter("held.factor")).held.factor),
    "partial_of_getattr": getter(lambda self: functools.partial(getattr, self.held)("factor")),
    "partial_of_getattr_of_a_module": getter(
        lambda self: functools.partial(operator.attrgetter("held.factor"), self)()
    ),
}


class HasMethod:
    def __init__(self, module):
        self.module = module

    def told(self, scale):
        return self.module.held.factor * scale


@kind
def gradient_of_a_buffer(m):
    m.register_buffer("scale", torch.ones(()))
    return (lambda self: 3.0 if self.scale.requires_grad else 1.0), lambda: m.scale.requires_grad_()
