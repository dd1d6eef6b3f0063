"""Functions, closures, defaults and globals."""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import Any

import torch

from .holders import TABLE, kind

FACTOR: Any = 1.0
settings: Any = ModuleType("settings_of_a_user")
settings.__file__ = __file__
sys.modules["settings_of_a_user"] = settings


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
        import settings_of_a_user  # pyright: ignore[reportMissingImports]

        return settings_of_a_user.factor

    return read, lambda: setattr(settings, "factor", 3.0)


@kind
def imported_from_a_module(m):
    settings.factor = 1.0

    def read(self):
        from settings_of_a_user import factor  # pyright: ignore[reportMissingImports]

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

    return (lambda self: inner()), lambda: setattr(inner, "__kwdefaults__", {"given": 3.0})


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
