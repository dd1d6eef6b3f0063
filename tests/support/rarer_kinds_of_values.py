"""Kinds of values of which few models make use, each with a change to it: as kinds_of_values.py."""

from __future__ import annotations

import abc
import collections
import ctypes
import functools
import importlib
import sys
import threading
import types
from collections.abc import Callable
from concurrent import futures
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

RARER: dict[str, Callable[[Any], tuple[Callable[[Any], Any], Callable[[], Any]]]] = {}
USERS: Any = types.ModuleType("users_of_rarer_kinds")


def rarer(make: Any) -> Any:
    RARER[make.__name__] = make
    return make


class Plain:
    factor = 1.0


# ── classes ─────────────────────────────────────────────────────────────────────────────────────────


@rarer
def what_is_registered_with_an_abstract_class(m):
    class Large(abc.ABC): ...  # noqa: B024

    m.held = Plain()
    return (lambda self: 3.0 if isinstance(self.held, Large) else 1.0), lambda: Large.register(Plain)


@rarer
def what_a_protocol_asks_for(m):
    @runtime_checkable
    class Grows(Protocol):
        def grow(self): ...

    m.held = Plain()
    return (lambda self: 3.0 if isinstance(self.held, Grows) else 1.0), lambda: setattr(
        m.held, "grow", lambda: None
    )


@rarer
def a_subclass(m):
    class Large(abc.ABC): ...  # noqa: B024

    class Small: ...

    m.kind = Small
    return (lambda self: 3.0 if issubclass(self.kind, Large) else 1.0), lambda: Large.register(Small)


@rarer
def the_bases_of_a_class(m):
    class Small:
        factor = 1.0

    class Large:
        factor = 3.0

    class Held(Small): ...

    m.held = Held()
    return (lambda self: self.held.factor), lambda: setattr(Held, "__bases__", (Large,))


@rarer
def a_value_that_a_pattern_names(m):
    class Values:
        one = 1

    m.value = 1

    def read(self):
        match self.value:
            case Values.one:
                return 1.0
            case _:
                return 3.0

    return read, lambda: setattr(Values, "one", 2)


@rarer
def a_class_that_a_pattern_names(m):
    class Kinds:
        small = Plain

    m.held = Plain()

    def read(self):
        match self.held:
            case Kinds.small():
                return 1.0
            case _:
                return 3.0

    return read, lambda: setattr(Kinds, "small", dict)


@rarer
def an_attribute_of_a_float_of_a_user_s_class(m):
    class Length(float):
        unit: float

    m.held = Length(1.0)
    m.held.unit = 1.0
    return (lambda self: self.held.unit), lambda: setattr(m.held, "unit", 3.0)


# ── containers ──────────────────────────────────────────────────────────────────────────────────────


@rarer
def a_key_that_is_tried(m):
    m.table = {}

    def read(self):
        try:
            return self.table["factor"]
        except KeyError:
            return 1.0

    return read, lambda: m.table.update(factor=3.0)


@rarer
def a_place_that_is_tried(m):
    m.table = []

    def read(self):
        try:
            return self.table[0]
        except IndexError:
            return 1.0

    return read, lambda: m.table.append(3.0)


@rarer
def how_a_missing_entry_is_made(m):
    m.table = collections.defaultdict(lambda: 1.0)
    return (lambda self: self.table["factor"]), lambda: setattr(m.table, "default_factory", lambda: 3.0)


@rarer
def what_the_maker_of_a_missing_entry_reads(m):
    held = Plain()
    m.table = collections.defaultdict(lambda: held.factor)
    return (lambda self: self.table["factor"]), lambda: setattr(held, "factor", 3.0)


@rarer
def a_method_to_sort_by(m):
    m.names, m.order = ["one", "other"], {"one": 1, "other": 2}

    def change():
        m.order["one"] = 3

    return (lambda self: 1.0 if sorted(self.names, key=self.order.get)[0] == "one" else 3.0), change


@rarer
def a_cache_that_the_loop_fills(m):
    """The iteration fills it too, by a number of its own."""
    m.table = {}
    return (lambda self: self.table.setdefault("factor", 1.0)), lambda: m.table.update(factor=3.0)


@rarer
def a_number_that_a_pointer_leads_to(m):
    number = ctypes.c_double(1.0)
    m.pointer = ctypes.pointer(number)
    return (lambda self: self.pointer.contents.value), lambda: setattr(number, "value", 3.0)


@rarer
def a_text_of_a_container(m):
    m.table = [1]
    return (lambda self: 1.0 if repr(self.table) == "[1]" else 3.0), lambda: m.table.append(2)


@rarer
def the_hash_of_a_tuple(m):
    m.pair = (1, 2)
    return (lambda self: 1.0 if hash(self.pair) == hash((1, 2)) else 3.0), lambda: setattr(m, "pair", (2, 2))


@rarer
def a_chain_of_comparisons(m):
    m.held, m.first, m.others = Plain(), Plain(), []
    m.first = m.held
    return (lambda self: 3.0 if self.held is self.first in self.others else 1.0), lambda: m.others.append(
        m.held
    )


# ── functions and modules ───────────────────────────────────────────────────────────────────────────


@rarer
def a_function_registered_for_a_type(m):
    @functools.singledispatch
    def factor(_value):
        return 1.0

    m.value = 1
    return (lambda self: factor(self.value)), lambda: factor.register(int, lambda _value: 3.0)


@rarer
def what_a_module_gives_for_a_missing_name(m):
    module: Any = types.ModuleType("a_module_with_getattr")
    module.factor = 1.0
    module.__getattr__ = lambda _name: module.factor
    return (lambda self: module.missing), lambda: setattr(module, "factor", 3.0)


@rarer
def a_module_in_the_place_of_another(m):
    def change(factor=3.0):
        made = sys.modules["users_of_rarer_kinds"] = types.ModuleType("users_of_rarer_kinds")
        vars(made)["factor"] = factor

    def read(self):
        import users_of_rarer_kinds  # pyright: ignore[reportMissingImports]

        return users_of_rarer_kinds.factor

    change(1.0)
    return read, change


@rarer
def a_module_that_is_missing(m):
    sys.modules.pop("found_later", None)

    def read(self):
        try:
            import found_later  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            return 1.0
        return 3.0

    return read, lambda: sys.modules.setdefault("found_later", types.ModuleType("found_later"))


@rarer
def a_module_by_its_name(m):
    USERS.factor = 1.0
    sys.modules["named_users"] = USERS
    return (lambda self: importlib.import_module("named_users").factor), lambda: setattr(USERS, "factor", 3.0)


# ── libraries ───────────────────────────────────────────────────────────────────────────────────────


@rarer
def a_limit_of_python_s(m):
    before = sys.getrecursionlimit()
    m.undo = lambda: sys.setrecursionlimit(before)
    return (lambda self: 1.0 if sys.getrecursionlimit() == before else 3.0), lambda: sys.setrecursionlimit(
        before + 1
    )


@rarer
def how_numpy_treats_errors(m):
    before = np.geterr()
    m.undo = lambda: np.seterr(**before)
    return (lambda self: 3.0 if np.geterr()["over"] == "raise" else 1.0), lambda: np.seterr(over="raise")


@rarer
def a_function_of_torch_replaced(m):
    before = torch.sin
    m.undo = lambda: setattr(torch, "sin", before)
    return (lambda self: torch.sin(torch.ones(()))), lambda: setattr(torch, "sin", torch.cos)


@rarer
def a_method_of_tensors_replaced(m):
    before = torch.Tensor.sin
    m.undo = lambda: setattr(torch.Tensor, "sin", before)
    return (lambda self: torch.ones(()).sin()), lambda: setattr(torch.Tensor, "sin", torch.Tensor.cos)


@rarer
def the_forward_of_a_library_s_module(m):
    before = nn.Linear.forward
    m.undo = lambda: setattr(nn.Linear, "forward", before)
    return (lambda self: 1.0), lambda: setattr(nn.Linear, "forward", lambda self, x: before(self, x) * 3)


@rarer
def a_hook_for_all_modules(m):
    def change():
        hook = nn.modules.module.register_module_forward_hook(lambda _module, _given, output: output * 3)
        m.undo = hook.remove

    return (lambda self: 1.0), change


@rarer
def a_tuple_that_a_library_s_module_holds(m):
    m.pool = nn.AvgPool1d(3, stride=3)
    return (lambda self: self.pool(torch.ones(1, 3)).sum()), lambda: setattr(m.pool, "kernel_size", (1,))


@rarer
def a_function_that_a_library_s_module_holds(m):
    m.part = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=True)

    def change():
        m.part.activation = torch.tanh

    return (lambda self: self.part(torch.ones(1, 2, 4)).sum()), change


# ── weights and buffers ─────────────────────────────────────────────────────────────────────────────


@rarer
def a_buffer_that_is_gone(m):
    m.register_buffer("scale", torch.ones(3))
    return (lambda self: 3.0 if self.scale is None else self.scale), lambda: setattr(m, "scale", None)


@rarer
def a_buffer_that_comes(m):
    m.register_buffer("scale", None)
    return (lambda self: 1.0 if self.scale is None else 3.0), lambda: setattr(m, "scale", torch.ones(3))


@rarer
def a_bias_that_is_gone(m):
    return (lambda self: 1.0), lambda: setattr(m.layer, "bias", None)


# ── patterns and threads ────────────────────────────────────────────────────────────────────────────


@rarer
def an_attribute_in_a_class_pattern(m):
    m.held = [Plain(), {"k": Plain()}]

    def read(self):
        match self.held:
            case [Plain(factor=1.0), {"k": Plain(factor=1.0)}]:
                return 1.0
            case _:
                return 3.0

    return read, lambda: setattr(m.held[1]["k"], "factor", 2.0)


@rarer
def an_attribute_by_match_args(m):
    class Pair:
        __match_args__ = ("one", "two")
        one, two = 1.0, 1.0

    m.held = Pair()

    def read(self):
        match self.held:
            case Pair(2.0) | Pair(3.0, _):
                return 2.0
            case Pair(_, factor) if factor:
                return factor

    return read, lambda: setattr(m.held, "two", 3.0)


POOL = futures.ThreadPoolExecutor(1)
POOL.submit(len, ()).result()  # its thread is there before any trace


def of_thread(found):
    found.append(USERS.factor)


@rarer
def what_a_thread_reads(m):
    USERS.factor = 1.0

    def read(self):
        found: list[float] = []
        thread = threading.Thread(target=of_thread, args=(found,))
        thread.start()
        thread.join()
        return found[0]

    return read, lambda: setattr(USERS, "factor", 3.0)


@rarer
def what_a_pools_thread_reads(m):
    USERS.factor = 1.0

    def read(self):
        found: list[float] = []
        POOL.submit(of_thread, found).result()
        return found[0]

    return read, lambda: setattr(USERS, "factor", 3.0)


@rarer
def a_list_of_a_librarys_module(m):
    m.undo = functools.partial(setattr, sys, "argv", sys.argv)
    return (lambda self: 1.0 + 2.0 * (len(sys.argv) == 77)), lambda: setattr(sys, "argv", ["a"] * 77)
