"""The functions of the user's that run in a form that reports what they read, and those that can't.

A function is followed once it is seen: the planned module's classes, what their code loads, functions in
decorators, hooks. Code without a source is followed by the names in it.
"""

from __future__ import annotations

import dis
import functools
import linecache
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from types import (
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, cast

from torch import Tensor, nn

from ...torch_support.raw import MISSING, bases_of, class_entries, is_a, name_of, own_attributes
from ...torch_support.reach import LONGEST, READS_GLOBAL, container_of, is_of_user, is_of_user_class
from ...torch_support.torch_modules import FORWARD_HOOKS, is_made, looks_on
from .codes import rewritten, with_reader
from .contents import SCALARS, is_plain
from .nodes import Nodes, quietly
from .predicates import CACHED, MAKING, entries, is_ours, of_its_bases
from .reader import Reader, Recorder
from .reads import (
    of_attribute,
    of_bases,
    of_class,
    of_closure,
    of_content,
    of_instance,
)

# LOAD_METHOD until 3.11; `super().name` is LOAD_SUPER_ATTR from 3.12 on.
_READS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


class Following(Nodes):
    """Recording that follows the code which a trace may run."""

    @quietly
    def see(self, value: Any) -> None:
        """Follow the code of a value that can be called, and that of its class."""
        kind = type(value)
        if issubclass(kind, SCALARS) and not is_of_user_class(kind):
            return
        if is_a(value, FunctionType):
            self._follow(value)
        elif is_a(value, MethodType):
            self.see(value.__func__)
        elif is_a(value, partial):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.see(value.func)
                if (node := self._outside(value)) is not None:
                    for name in ("func", "args", "keywords"):
                        self._record(node, of_attribute, name, getattr(value, name))
                    self.read_whole(value.args)
                    self.read_whole(value.keywords)
        elif is_a(value, type):
            self._see_class(value)
        elif is_a(value, nn.Module):
            self._see_module(value)
        elif is_a(value, CACHED):
            self.see(value.__wrapped__)
        elif is_a(value, defaultdict):
            self.see(value.default_factory)
        elif is_a(value, ModuleType):
            self.see(vars(value).get("__getattr__"))
        elif not is_a(value, Tensor):
            self._see_class(kind)

    def _see_module(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        kind = type(module)
        self._see_class(kind)
        self._record(self._node(kind, (name_of(kind),)), of_its_bases, "forward")
        if not is_made(module):
            return  # its __init__ has only begun
        self._seen[id(module)] = module
        for register in FORWARD_HOOKS:
            for hook in vars(module)[register].values():
                if not looks_on(hook):
                    self.see(hook)
        for part in module.children():
            self._see_module(part)
        if "forward" in vars(module):
            self.see(vars(module)["forward"])

    def _see_class(self, kind: type) -> None:
        if id(kind) in self._seen:
            return
        self._seen[id(kind)] = kind
        for base in bases_of(kind):
            if is_of_user_class(base):
                for name, entry in [*class_entries(base).items()]:
                    self._see_entry(entry)
                    runs = name == "forward" or (name[:2] == name[-2:] == "__" and name not in MAKING)
                    if runs and is_a(entry, FunctionType):  # Python calls it without loading it
                        self._record(self._node(base, (name_of(base),)), of_its_bases, name, entry)
        if type(kind) is not type:
            self._see_class(type(kind))

    def _see_entry(self, entry: Any) -> None:
        if is_a(entry, FunctionType):
            self._follow(entry)
        elif is_a(entry, staticmethod | classmethod):
            self._see_entry(entry.__func__)
        elif is_a(entry, property):
            for each in (entry.fget, entry.fset):
                self._see_entry(each)
        elif is_a(entry, functools.cached_property):
            self._see_entry(entry.func)
        elif is_a(entry, CACHED):
            self._see_entry(entry.__wrapped__)
        elif entry is not None and is_of_user_class(type(entry)):
            self._see_class(type(entry))

    def _follow(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        for cell in function.__closure__ or ():  # decorators hold the function that they wrap
            with suppress(ValueError):
                if is_a(cell.cell_contents, FunctionType):
                    self._follow(cell.cell_contents)
        if not self._listening or not is_of_user(function) or is_ours(str(function.__module__)):
            return
        self._node(function, (function.__qualname__,))
        if (code := _reporting_code(function.__code__)) is None:
            self._by_names_of(function)
            return
        # The object stays the same function, so that all who hold it call the reporting code too.
        self._codes[function] = function.__code__
        function.__code__ = with_reader(code, Reader(cast("Recorder", self), function))

    # ── code without a source: by the names in it ───────────────────────────────────────────────────

    def _by_names_of(self, function: Any) -> None:
        if not is_a(function, FunctionType) or not is_of_user(function):
            return
        self._sourceless = True
        code = self._codes.get(function, function.__code__)
        self._unread |= set(_names(code, *_READS_ATTRIBUTE))
        if function.__name__ not in MAKING:
            self._stored |= set(_names(code, "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF"))
        for name in sorted(set(_names(code, *READS_GLOBAL)) - self._stored):
            if name in function.__globals__:
                self.read_name(function, name, function.__globals__[name], free=False)
        for name in sorted({*code.co_freevars} - self._stored):
            if (value := of_closure(function, name)) is not MISSING:
                self.read_name(function, name, value, free=True)

    @quietly
    def _by_names(self) -> None:
        """Record the attributes that code without source names, of all objects that are known, and all
        items.
        """
        if not self._sourceless:
            return
        written = self._stored.union(*(node.written for node in self._nodes.values()))
        size = -1
        # Until nothing is added: an object may hold others, and the methods of its class name more
        # attributes.
        while size != (size := len(self._nodes) + len(self._unread)):
            for node in [*self._nodes.values()]:
                thing = node.thing
                if (kept := container_of(thing)) is not None:
                    code = is_a(thing, dict) and dict.__contains__(thing, "__builtins__")
                    if not node.reads and kept.__len__(thing) <= LONGEST and not code:
                        self._record(node, of_content, None)
                        for each in entries(thing):
                            self._node_of(each, node.path)
                            self.see(each)
                    continue
                if is_a(thing, ModuleType | Tensor | FunctionType | type):
                    continue
                for base in bases_of(type(thing)):
                    for method in [*class_entries(base).values()] if is_of_user_class(base) else ():
                        if is_a(method, FunctionType):
                            known = self._codes.get(method, method.__code__)
                            self._unread |= set(_names(known, *_READS_ATTRIBUTE))
                own = own_attributes(thing) or {}
                for name in sorted(self._unread - written):
                    if name in own:
                        self._record(node, of_instance, name)
                        self.see(own[name])
                    elif is_plain(of_bases(type(thing), name)):
                        self._record(node, of_class, name)
                    elif is_a(of_bases(type(thing), name), MemberDescriptorType):
                        self._record(node, of_attribute, name)


def _reporting_code(code: CodeType) -> CodeType | None:
    """Return the rewritten code, None if there is no source of it."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return None
    try:
        return rewritten("".join(lines), code.co_filename).get(code)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _names(code: CodeType, *operations: str) -> Iterable[str]:
    for each in dis.get_instructions(code):
        if each.opname in operations:
            yield each.argval
    for part in code.co_consts:
        if is_a(part, CodeType):
            yield from _names(part, *operations)
