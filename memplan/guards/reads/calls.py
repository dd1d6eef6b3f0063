"""Calls of functions that report nothing themselves: C's, Python's, libraries'.

They read their arguments whole, but for those that are known to read less, like `getattr` and `len`.
"""

from __future__ import annotations

import gc
import operator
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

from torch import Tensor, nn

from ...torch_support.raw import MISSING, class_entry, is_a, is_made, is_mapping, part_of
from ...torch_support.reach import is_of_user, is_of_user_class
from ...torch_support.torch_autograd import in_backward
from .contents import content, is_plain
from .forbidden import refuse_call, refuse_unseeded
from .getters import CALL_THEIR_ARGUMENTS, READERS, Call, call_of, of_call, of_call_content, reporting
from .nodes import quietly
from .outside import unseen
from .patterns import report
from .placeholders import Identity
from .predicates import CACHED, CODE_OF_ANY, SKIPPED, is_hashable, is_pool_of_threads
from .reader import users_place
from .reads import (
    Node,
    of_entry,
    of_instance_of,
    of_item,
    of_subclass_of,
)
from .reports import Reports

_ONLY_IDENTITY: set[Any] = {type, callable, super, print}


class Calls(Reports):
    """Reporter of calls, which runs those that report nothing themselves."""

    @quietly
    def callee(self, function: Any) -> Any:
        """Return the function, or one that replaces it and reports its arguments too."""
        self.see(function)
        if is_a(function, FunctionType):
            return function if is_of_user(function) else self._reporting(function)
        if is_a(function, MethodType):
            inner = function.__func__
            followed = is_a(inner, FunctionType) and is_of_user(inner)
            return function if followed else self._reporting(function)
        if is_a(function, nn.Module) or function in (super, locals, dir, globals):
            return function
        if is_a(function, type):
            return function if is_of_user_class(function) else self._reporting(function)
        if is_a(function, BuiltinFunctionType):
            return self._reporting(function)
        if is_of_user_class(type(function)):
            return function
        return self._reporting(function)

    # ── calls that report nothing themselves ────────────────────────────────────────────────────────

    def _reporting(self, function: Any) -> Any:
        refuse_call(function, self._outside)
        if function is eval or function is exec:
            self.unwatched.append(f"{users_place()}what {function.__name__} runs")
            return function
        hashable = is_hashable(function)  # a function of ctypes is not
        special = _SPECIAL.get(function) if hashable else None
        if special is not None:
            return partial(special, self)
        if _reads_by_itself(function):
            return reporting(function, self)
        if hashable and function in _ONLY_IDENTITY:
            return function
        return partial(self._called, function)

    def _passed(self, thing: Any) -> Any:
        """Return an argument that Python itself will call, like `sorted`'s key, with its reads reported."""
        return self.callee(thing) if _reads_by_itself(thing) or _is_special(thing) else thing

    def _called(self, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        receiver = part_of(function, "__self__")
        if is_a(receiver, ModuleType):
            receiver = None
        name = str(part_of(function, "__name__"))
        if receiver is not None:
            arguments = tuple(self._as_key(receiver, each) for each in arguments)
        if is_mapping(receiver) and name in ("get", "__getitem__") and arguments:
            node = self._outside(receiver)
            if node is not None and is_hashable(arguments[0]):
                entry = is_a(receiver, dict) and class_entry(type(receiver), "get") is dict.get
                self._record(node, of_entry if entry else of_item, arguments[0])
                return self._result(function(*arguments, **keywords), node, arguments[0])
        if (call := call_of(function, arguments, keywords)) is not None:
            return self._told(function, call)
        pool = receiver is not None and is_pool_of_threads(receiver)
        if receiver is not None and name not in _ONLY_WRITES and not pool:
            self.read_whole(receiver, deep=True)
        if not is_a(function, CODE_OF_ANY):
            self.read_whole(function, deep=True)  # a weak reference, say
        if is_a(table := part_of(function, "registry"), MappingProxyType):
            for each in table.values():  # of functools.singledispatch
                self.see(each)
            self.read_whole(gc.get_referents(table)[0], deep=True)
        if is_a(function, CACHED):
            self._by_names_of(function.__wrapped__)
        for each in (*arguments, *keywords.values()):  # code that reports nothing may read anything of them
            self.read_whole(each, deep=True)
        node = self._nodes.get(id(receiver))
        if node is not None and name in _ONLY_WRITES and in_backward():
            self._note_left(node, None)
        if node is not None and is_a(receiver, list | deque) and name in _ONLY_WRITES:
            emptied = name == "clear"  # what is added to it from here on is of this iteration
            self._grown.setdefault(node, (None if emptied else content(receiver, deep=False), ""))
        refuse_unseeded(function, arguments, keywords)
        # What Python calls for them, in C, has no call in the user's code that could report.
        if str(part_of(function, "__module__")) in CALL_THEIR_ARGUMENTS:
            arguments = tuple(map(self._passed, arguments))
            keywords = {key: self._passed(each) for key, each in keywords.items()}
        if pool:
            arguments = tuple(map(self._helped, arguments))
        result = function(*arguments, **keywords)
        there = receiver is None or self._outside(receiver) is not None
        if there and (found := unseen(function, receiver, arguments, result)) is not None:
            self.unwatched.append(f"{users_place()}{found}")
        return self._result(result, node, f"{name}()")

    def _helped(self, function: Any) -> Any:
        """Return a function of the user's that reports what it reads on a pool's thread too."""
        if not is_a(function, FunctionType | MethodType):
            return function

        def run(*arguments: Any, **keywords: Any) -> Any:
            thread = get_ident()
            self._helping.add(thread)
            try:
                return function(*arguments, **keywords)
            finally:
                self._helping.discard(thread)

        return run

    def _told(self, function: Any, call: Call) -> Any:
        """Return the answer of a call that changes nothing, and record it."""
        result = function(*call.arguments, **dict(call.keywords))
        path = (f"{function.__module__}.{function.__name__}",)
        node = self._outside(function.__self__) if call.method else self._node(function, path)
        if node is not None and is_plain(result):
            self._record(node, of_call, call, result)
        elif node is not None and is_a(result, dict):
            self._record(node, of_call_content, call, content(result))
        return result

    def _result(self, result: Any, node: Node | None, key: Any) -> Any:
        self.see(result)
        if node is not None or self._youngest.was_there(result):
            self._node_of(result, (*(node.path if node else ()), key), known=False)
        return result

    def _getattr(self, thing: Any, name: str, *default: Any) -> Any:
        try:
            value = getattr(thing, name)
        except AttributeError:
            self.read_attribute(thing, name, None)
            if default:
                return default[0]
            raise
        self.read_attribute(thing, name, value)
        return value

    def reported_attribute(self, thing: Any, name: str) -> Any:
        return self._getattr(thing, name)

    def reported_item(self, thing: Any, key: Any) -> Any:
        made = is_made(thing, key)
        value = thing[key]
        self.read_item(thing, key, value, made=made)
        return value

    def read_same(self, one: Any, other: Any) -> bool:
        for given, thing in ((one, other), (other, one)):
            if is_a(thing, Tensor) and (name := self.stand_ins.input_of(given, thing)) is not None:
                return self.stand_ins.is_one(name, self.read_identity(thing), self._module)
        return self.read_identity(one) is self.read_identity(other)

    def _is_not(self, one: Any, other: Any) -> bool:
        return not self.read_same(one, other)

    def _ordinary(self, thing: Any, name: str) -> Any:
        value = object.__getattribute__(thing, name)
        self.read_attribute(thing, name, value)
        return value

    def _hasattr(self, thing: Any, name: str) -> bool:
        self._getattr(thing, name, None)
        return hasattr(thing, name)

    def _setattr(self, thing: Any, name: str, value: Any) -> None:
        self.wrote(thing, name, attribute=True, counts=False)
        setattr(thing, name, value)

    def _delattr(self, thing: Any, name: str) -> None:
        self.wrote(thing, name, attribute=True, counts=False)
        delattr(thing, name)

    def _id(self, thing: Any) -> int:
        return Identity(thing, self) if is_a(thing, Tensor) else id(thing)

    def _vars(self, thing: Any) -> dict[str, Any]:
        if is_a(thing, Tensor):
            self.read_attribute(thing, "__dict__", None)
        own: Any = vars(thing)
        if (node := self._outside(thing)) is not None and is_a(own, dict):
            self._node(own, node.path)
        return own

    def _isinstance(self, thing: Any, kind: Any) -> bool:
        found = isinstance(thing, kind)
        if not is_a(thing, (*SKIPPED, Tensor)) and (node := self._outside(thing)) is not None:
            self._record(node, of_instance_of, kind, found)
        return found

    def _issubclass(self, thing: type, kind: Any) -> bool:
        found = issubclass(thing, kind)
        if (node := self._outside(thing)) is not None:
            self._record(node, of_subclass_of, kind, found)
        return found

    def read_pattern(self, thing: Any, shape: Any, named: tuple[Any, ...]) -> None:
        report(thing, shape, named, self)

    def reported_instance(self, thing: Any, kind: Any) -> bool:
        return self._isinstance(thing, kind)

    def reported_attribute_or_none(self, thing: Any, name: str) -> Any:
        """Return an attribute; MISSING if there is none."""
        return self._getattr(thing, name, MISSING)

    def _len(self, thing: Any) -> int:
        self.read_length(thing)
        return len(thing)

    def _bool(self, thing: object = False) -> bool:
        sized = class_entry(type(thing), "__len__") is not MISSING
        if sized and not is_a(thing, Tensor):  # others have no length to be read
            self.read_length(thing)
        return bool(thing)

    def _getenv(self, key: str, default: Any = None) -> Any:
        return self._called(os.environ.get, key, default)


def _reads_by_itself(function: Any) -> bool:
    """Tell whether the function is one of READERS, or a partial that calls such a one."""
    if is_a(function, partial):
        return _reads_by_itself(function.func) or _is_special(function.func)
    return is_a(function, READERS)


def _is_special(function: Any) -> bool:
    return is_a(function, BuiltinFunctionType) and function in _SPECIAL


_ONLY_WRITES = frozenset({"append", "extend", "add", "clear", "appendleft", "insert", "discard", "update"})
"""Methods of containers that add to them or empty them."""
_SPECIAL: dict[Any, Callable[..., Any]] = {
    getattr: Calls._getattr,
    hasattr: Calls._hasattr,
    setattr: Calls._setattr,
    delattr: Calls._delattr,
    object.__getattribute__: Calls._ordinary,
    object.__setattr__: Calls._setattr,
    vars: Calls._vars,
    id: Calls._id,
    operator.is_: Calls.read_same,
    operator.is_not: Calls._is_not,
    isinstance: Calls._isinstance,
    issubclass: Calls._issubclass,
    len: Calls._len,
    bool: Calls._bool,
    os.getenv: Calls._getenv,
}
