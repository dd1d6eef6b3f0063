"""Entries of containers, and numbers of other kinds than Python's."""

from __future__ import annotations

import array
import collections
import copy
import ctypes
import dataclasses
import decimal
import fractions
import functools
import json
import multiprocessing
import operator
import types

import numpy as np
import torch

from .holders import KINDS, Called, Compared, Data, Frozen, Mode, OtherCompared, Plain, Row, kind


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
