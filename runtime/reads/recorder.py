"""A trace's reads of Python's objects, recorded while it runs.

The code of the user's functions is replaced, for the time of the trace, by code that reports what it reads
(rewrite.py, reader.py). A function is followed once it is seen: the planned module's classes, what their code
loads, functions in decorators, hooks. Objects that were there before the trace are nodes; what the iteration
makes is its own. Calls of functions that are not followed (C, Python's own, libraries') read their arguments
whole. Code without a source is followed by the names in it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import dis
import functools
import gc
import importlib.util
import linecache
import operator
import os
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from numbers import Number
from threading import get_ident
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from ..reach import LONGEST, Path, is_of_library, is_of_user
from ..refusals import TraceError, at_line, warn_user
from ..torch_internals import FORWARD_HOOKS, MODULE_REGISTERS, FakeTensor
from .carried import Carried, carried, refusal
from .contents import LARGEST, MISSING, SCALARS, Kind, content, is_of_user_class, is_plain
from .forbidden import no_files_read, refuse_call, refuse_iterator, refuse_unseeded
from .getters import CALL_THEIR_ARGUMENTS, READERS, Call, call_of, of_call, of_call_content, reporting
from .reader import Reader, users_place
from .reads import (
    Fetch,
    Made,
    Node,
    Read,
    Reads,
    all_reads,
    dict_of,
    of_attribute,
    of_attribute_content,
    of_bases,
    of_class,
    of_closure,
    of_content,
    of_entry,
    of_instance,
    of_instance_of,
    of_item,
    of_item_content,
    of_length,
    of_made,
    of_membership,
    of_module,
    of_subclass_of,
    of_whole,
    same,
    spell,
)
from .rewrite import rewritten, with_reader
from .stand_ins import Holder, Identity, OfBatch, StandIns

NOT_GIVEN = object()
_OURS = __name__.partition(".")[0]
_CACHED: Any = type(functools.cache(len))
_SKIPPED = (*SCALARS, FakeTensor)
_LOOKS_AT_FRAMES = {super, locals, dir, globals, vars}
_ONLY_IDENTITY: set[Any] = {type, callable, super, print}
_CODE_OF_ANY = (FunctionType, MethodType, BuiltinFunctionType, type, nn.Module, partial, _CACHED)


_Made = TypeVar("_Made")
_Given = ParamSpec("_Given")


def _quietly(report: Callable[Concatenate[Recording, _Given], _Made]) -> Callable[..., _Made]:
    """A report during which nothing else is reported: it may run code of the user's objects."""

    @functools.wraps(report)
    def quiet(self: Recording, *arguments: _Given.args, **keywords: _Given.kwargs) -> _Made:
        before, self._busy = self._busy, True
        try:
            return report(self, *arguments, **keywords)
        finally:
            self._busy = before

    return quiet


class Recording:
    """The reads of one trace: `listening` surrounds it, `reads` gives those to guard, `close` ends it."""

    def __init__(
        self,
        module: nn.Module,
        others: Mapping[str, Any],
        tensors: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """others: the roots beside the module, by name: a loss function. tensors: the batch's."""
        self.stand_ins = StandIns(OfBatch(tensors))
        self._module, self._others = module, dict(others)
        planned = [each for each in (module, *self._others.values()) if isinstance(each, nn.Module)]
        self._own = {id(part) for each in planned for part in each.modules()}
        self._thread, self._listening = 0, False
        self._nodes: dict[int, Node] = {}
        self._seen: dict[int, Any] = {}
        self._codes: dict[FunctionType, CodeType] = {}
        self._old: dict[int, Any] = {}
        self._new: set[int] = set()
        self._busy = False
        self._sourceless = False
        self._unread: set[str] = set()
        self._stored: set[str] = set()
        self._own_state: set[int] = set()
        self._grown: dict[Node, tuple[Any, str]] = {}
        self.unwatched: list[str] = []
        self.carried: list[Carried] = []

    @property
    def listens(self) -> bool:
        return self._listening and not self._busy and get_ident() == self._thread

    @contextmanager
    def listening(self) -> Generator[None]:
        """The user's functions report what they read; afterwards they are as before."""
        collects = gc.isenabled()
        gc.disable()  # so that objects made from here on stay in the youngest generation: see _was_there
        self._old = {id(each): each for each in gc.get_objects(generation=0)}
        self._thread, self._listening = get_ident(), True
        try:
            self._node(self._module, ("module",))
            for path, part in self._module.named_modules():
                self._node(part, ("module", *(path.split(".") if path else ())))
            for part in self._module.modules():
                self._see_module(part)
            for name, thing in self._others.items():
                self._node(thing, (name,))
                self.see(thing)
            self._by_names()  # code without a source reports nothing: what it leads to is followed beforehand
            with no_files_read():
                yield
        finally:
            self._listening = False
            self._note_new()  # the collector may move them from here on
            if collects:
                gc.enable()
            for function, code in self._codes.items():
                function.__code__ = code

    def note_carried(self) -> None:
        """Find what the code has read and the iteration then changed, before that is put back. Raises
        TraceError if a container was read after it had grown."""
        for node, read in all_reads(self._nodes.values()):
            now = read.fetch(node.thing, read.key)
            if now is read.value or same(now, read.value):
                continue
            self._own_state.add(id(read))
            if read.fetch is of_call and (not read.key.method or isinstance(now, bool)):
                continue  # it was inside of a `with` that switches it
            self.carried.append(carried(node, read, now))
        for node, (before, place) in self._grown.items():
            if place and content(node.thing, deep=False) != before:
                raise TraceError(refusal(node.path, before, content(node.thing, deep=False), place))

    def reads(self) -> Reads:
        """What is checked before iterations; after what the iteration has changed was put back."""
        self._by_names()
        for text in dict.fromkeys(self.unwatched):
            warn_user(f"{text}, can't be watched: if it changes, plan the module anew")
        settled = {id(each.read): each.guard() for each in self.carried}
        for node, read in all_reads(self._nodes.values()):
            if read.key in node.written or id(read) in self._own_state or not _holds(node, read):
                node.reads.pop((read.fetch, read.key), None)
            if (guard := settled.get(id(read))) is not None:
                node.reads[guard.fetch, guard.key] = guard
        roots = [node for node in self._nodes.values() if node.reads]
        tops = _tops(roots)
        batch = self.stand_ins.batch
        batch.forget()
        self.stand_ins = StandIns(batch)
        return Reads(tops, batch)

    def close(self) -> None:
        """Let go of the objects that were there when the trace began: the error of a trace that failed may be
        kept for long, and with it this recording."""
        self._seen, self._old, self._new, self._nodes, self.carried = {}, {}, set(), {}, []

    # ── what readers report ─────────────────────────────────────────────────────────────────────────

    @_quietly
    def read_name(self, function: FunctionType, name: str, value: Any, *, free: bool) -> None:
        self.see(value)
        node = self._node(function, (function.__qualname__,))
        if free:
            if name in function.__code__.co_freevars and name != "__class__":
                self._record(node, of_closure, name, value)
            return
        there = function.__globals__
        if name in there:
            self._record(self._globals(there), of_entry, name, value)

    @_quietly
    def wrote_name(self, function: FunctionType, name: str, *, free: bool, counts: bool) -> None:
        node = self._node(function, (function.__qualname__,)) if free else self._globals(function.__globals__)
        self._wrote(node, name, counts=counts)

    @_quietly
    def imported(self, function: FunctionType, module: str, level: int, name: str, value: Any) -> None:
        if (found := sys.modules.get(_full_name(function, module, level))) is not None:
            self.read_attribute(found, name, value)

    @_quietly
    def loaded(self, function: FunctionType, module: str, level: int) -> None:
        """Which module an import has found, if it is none of a library; whether it has found any."""
        full = _full_name(function, module, level)
        node = self._node(sys.modules, ("sys.modules",))
        if (found := sys.modules.get(full)) is None:
            self._record(node, of_membership, full, False)
            return
        file = vars(found).get("__file__")
        if not (full.partition(".")[0] in sys.stdlib_module_names or (file and is_of_library(file))):
            self.see(found)
            self._record(node, of_entry, full, found)

    @_quietly
    def read_attribute(self, thing: Any, name: str, value: Any) -> None:
        if isinstance(thing, Tensor):
            self._read_of_tensor(thing, name, value)
            return
        if isinstance(thing, _SKIPPED) and not is_of_user_class(type(thing)):
            return
        self.see(value)
        if type(thing) is super:
            where: Any = thing
            kind = type(where.__self__)
            self._record(self._node(kind, (kind.__name__,)), _of_super, (where.__thisclass__, name))
            return
        node = self._outside(thing)
        if name == "__class__" or (isinstance(value, BuiltinFunctionType) and value.__self__ is thing):
            return
        if node is None:
            kind = type(thing)
            if is_of_user_class(kind) and name not in (dict_of(thing) or ()):
                self._record(self._node(kind, (kind.__name__,)), _of_its_bases, name)
            return
        if isinstance(thing, ModuleType):
            file = vars(thing).get("__file__")
            if file is None or is_of_library(file) or _is_ours(thing.__name__):
                if is_plain(value) or (callable(value) and vars(thing).get(name) is value):
                    self._record(node, of_attribute, name)  # a switch of the library's, or its function
                else:
                    self._node_of(value, (*node.path, name))
                return
            self._record(node, of_instance, name, vars(thing).get(name, MISSING))
            return
        if isinstance(thing, nn.Module) and (name in MODULE_REGISTERS or name not in vars(thing)):
            for register in MODULE_REGISTERS:
                if name in vars(thing)[register]:
                    self._node_of(vars(thing)[register][name], (*node.path, name))
                    return
        self._record(node, *self._source(thing, name))

    def _read_of_tensor(self, tensor: Any, name: str, value: Any) -> None:
        """An attribute that the user has put on it, or a state that is none of its content."""
        if callable(value) and callable(entry := of_bases(Tensor, name)):
            self._record(self._node(Tensor, ("torch.Tensor",)), _of_its_bases, name, entry)
        if isinstance(tensor, FakeTensor) or self.stand_ins.is_own(tensor):
            if (own := self.stand_ins.read(tensor, name)) is not None:
                self._record(self._node(own[0], ("module", *own[1].split("."))), of_attribute, name)
            return
        node = self._outside(tensor)
        state = is_plain(value) or value is None or not hasattr(Tensor, name) or name == "grad"
        if node is not None and name not in _OF_CONTENT and state:
            self._record(node, of_attribute, name)

    @_quietly
    def read_item(self, thing: Any, key: Any, value: Any, *, made: bool = False) -> None:
        key = self._as_key(thing, key)
        if isinstance(thing, (*_SKIPPED, Tensor, nn.Module)):
            return
        self.see(value)
        node = self._outside(thing)
        if node is None:
            return
        if isinstance(key, slice):
            self.read_whole(thing)
        elif not _is_hashable(key):
            self.read_whole(thing, deep=True)
        elif isinstance(thing, dict) and type(thing).__getitem__ is dict.__getitem__:
            if made:
                self._record(node, of_made, Made(key, value))
                self._record(node, of_attribute, "default_factory")
            else:
                self._record(node, of_entry, key)
        elif not _is_users_function(of_bases(type(thing), "__getitem__")):
            self._record(node, of_item, key, value)

    @_quietly
    def read_length(self, thing: Any) -> None:
        """Whether there is something in it."""
        if isinstance(thing, (*_SKIPPED, Tensor, nn.Module)):
            return
        if hasattr(type(thing), "__len__") and (node := self._outside(thing)) is not None:
            self._record(node, of_length, None, of_length(thing, None))
        else:
            self.read_whole(thing)

    @_quietly
    def read_membership(self, thing: Any, key: Any, value: bool) -> None:
        if isinstance(thing, (*_SKIPPED, Tensor, nn.Module)):
            return
        refuse_iterator(self._outside(thing), thing)
        key = self._as_key(thing, key)
        if (node := self._outside(thing)) is not None:
            if _is_users_function(of_bases(type(thing), "__contains__")):
                return
            if _is_hashable(key):
                self._record(node, of_membership, key, value)
            else:
                self.read_whole(thing)

    @_quietly
    def read_whole(self, thing: Any, *, deep: bool = False, depth: int = 0) -> None:
        if isinstance(thing, _SKIPPED):
            return
        if isinstance(thing, Tensor) or (
            isinstance(thing, _CODE_OF_ANY) and not isinstance(thing, MethodType)
        ):
            self.see(thing)
            self._node_of_tensor(thing)
            if isinstance(thing, BuiltinFunctionType) and not isinstance(thing.__self__, ModuleType):
                self.read_whole(thing.__self__, deep=True)  # a dict's `get`, as a key to sort by
            return
        self.see(thing)
        node = self._outside(thing)
        if node is None:
            if depth < 2 and isinstance(thing, list | tuple | dict | set):
                for each in thing.values() if isinstance(thing, dict) else list(thing):
                    self.read_whole(each, deep=deep, depth=depth + 1)
            return
        refuse_iterator(node, thing)
        if not deep and _is_of_python_alone(type(thing)):
            return  # its methods report what they read
        self._note_large(node, thing)
        fetch = of_whole if deep else of_content
        self._record(node, fetch, None, fetch(thing, None))
        for each in _entries(thing):
            self._node_of(each, (*node.path, ""))
            self.see(each)

    def read_identity(self, thing: Any) -> Any:
        """Another object is not as good. The one to compare in its place."""
        if (node := self._nodes.get(id(thing))) is not None:
            node.itself = True
        return self.stand_ins.identity(thing)

    @_quietly
    def wrote(self, thing: Any, key: Any, *, attribute: bool, counts: bool) -> None:
        if isinstance(thing, Tensor) and attribute:
            if (own := self.stand_ins.wrote(thing, key)) is not None:
                self._wrote(self._node(own[0], ("module", *own[1].split("."))), key, counts=counts)
            return
        if isinstance(thing, (*_SKIPPED, Tensor)) or not _is_hashable(key):
            return
        if (node := self._outside(thing)) is not None:
            self._wrote(node, key, counts=counts)

    @_quietly
    def callee(self, function: Any) -> Any:
        """The function, or in its place one that reports its arguments too."""
        self.see(function)
        if isinstance(function, FunctionType):
            return function if is_of_user(function) else self._reporting(function)
        if isinstance(function, MethodType):
            inner = function.__func__
            followed = isinstance(inner, FunctionType) and is_of_user(inner)
            return function if followed else self._reporting(function)
        if isinstance(function, nn.Module) or function in (super, locals, dir, globals):
            return function
        if isinstance(function, type):
            return function if is_of_user_class(function) else self._reporting(function)
        if isinstance(function, BuiltinFunctionType):
            return self._reporting(function)
        if is_of_user_class(type(function)):
            return function
        return self._reporting(function)

    # ── calls that report nothing themselves ────────────────────────────────────────────────────────

    def _reporting(self, function: Any) -> Any:
        refuse_call(function, self._outside)
        if function is eval or function is exec:
            self.unwatched.append(f"{users_place(at_line)}what {function.__name__} runs")
            return function
        hashable = _is_hashable(function)  # a function of ctypes is not
        special = _SPECIAL.get(function) if hashable else None
        if special is not None:
            return partial(special, self)
        if _reads_by_itself(function):
            return reporting(function, self)
        if hashable and function in _ONLY_IDENTITY:
            return function
        return partial(self._called, function)

    def _passed(self, thing: Any) -> Any:
        """An argument that Python itself will call, like `sorted`'s key."""
        return self.callee(thing) if _reads_by_itself(thing) or _is_special(thing) else thing

    def _called(self, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        receiver = getattr(function, "__self__", None)
        if isinstance(receiver, ModuleType):
            receiver = None
        name = getattr(function, "__name__", "")
        if receiver is not None:
            arguments = tuple(self._as_key(receiver, each) for each in arguments)
        if isinstance(receiver, Mapping) and name in ("get", "__getitem__") and arguments:
            node = self._outside(receiver)
            if node is not None and _is_hashable(arguments[0]):
                entry = isinstance(receiver, dict) and type(receiver).get is dict.get
                self._record(node, of_entry if entry else of_item, arguments[0])
                return self._result(function(*arguments, **keywords), node, arguments[0])
        if (call := call_of(function, arguments, keywords)) is not None:
            return self._told(function, call)
        if receiver is not None and name not in _ONLY_WRITES:
            self.read_whole(receiver, deep=True)
        if not isinstance(function, _CODE_OF_ANY):
            self.read_whole(function, deep=True)  # a weak reference, say
        if isinstance(table := getattr(function, "registry", None), MappingProxyType):
            for each in table.values():  # of functools.singledispatch
                self.see(each)
            self.read_whole(gc.get_referents(table)[0], deep=True)
        if isinstance(function, _CACHED):
            self._by_names_of(function.__wrapped__)
        for each in (*arguments, *keywords.values()):
            self.read_whole(each, deep=True)
        node = self._nodes.get(id(receiver))
        if node is not None and isinstance(receiver, list | deque) and name in _ONLY_WRITES:
            emptied = name == "clear"  # what is added to it from here on is of this iteration
            self._grown.setdefault(node, (None if emptied else content(receiver, deep=False), ""))
        refuse_unseeded(function, arguments, keywords)
        if getattr(function, "__module__", None) in CALL_THEIR_ARGUMENTS:
            arguments = tuple(map(self._passed, arguments))
            keywords = {key: self._passed(each) for key, each in keywords.items()}
        result = function(*arguments, **keywords)
        return self._result(result, node, f"{name}()")

    def _told(self, function: Any, call: Call) -> Any:
        """The answer of a call that changes nothing."""
        result = function(*call.arguments, **dict(call.keywords))
        path = (f"{function.__module__}.{function.__name__}",)
        node = self._outside(function.__self__) if call.method else self._node(function, path)
        if node is not None and is_plain(result):
            self._record(node, of_call, call, result)
        elif node is not None and isinstance(result, dict):
            self._record(node, of_call_content, call, content(result))
        return result

    def _result(self, result: Any, node: Node | None, key: Any) -> Any:
        self.see(result)
        if node is not None or self._was_there(result):
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
        made = hasattr(type(thing), "__missing__") and key not in thing
        value = thing[key]
        self.read_item(thing, key, value, made=made)
        return value

    def read_same(self, one: Any, other: Any) -> bool:
        for given, thing in ((one, other), (other, one)):
            if isinstance(thing, Tensor) and (name := self.stand_ins.input_of(given, thing)) is not None:
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
        return Identity(thing, self) if isinstance(thing, Tensor) else id(thing)

    def _as_key(self, thing: Any, key: Any) -> Any:
        """A key of an object from outside: the identity of an input is another one in each iteration."""
        outside = isinstance(key, Identity) and self._outside(thing) is not None
        return key.number() if outside else key

    def _vars(self, thing: Any) -> dict[str, Any]:
        if isinstance(thing, Tensor):
            self.read_attribute(thing, "__dict__", None)
        own: Any = vars(thing)
        if (node := self._outside(thing)) is not None and isinstance(own, dict):
            self._node(own, node.path)
        return own

    def _isinstance(self, thing: Any, kind: Any) -> bool:
        found = isinstance(thing, kind)
        if not isinstance(thing, (*_SKIPPED, Tensor)) and (node := self._outside(thing)) is not None:
            self._record(node, of_instance_of, kind, found)
        return found

    def _issubclass(self, thing: type, kind: Any) -> bool:
        found = issubclass(thing, kind)
        if (node := self._outside(thing)) is not None:
            self._record(node, of_subclass_of, kind, found)
        return found

    def _len(self, thing: Any) -> int:
        self.read_length(thing)
        return len(thing)

    def _getenv(self, key: str, default: Any = None) -> Any:
        return self._called(os.environ.get, key, default)

    # ── nodes ───────────────────────────────────────────────────────────────────────────────────────

    def _node(self, thing: Any, path: Path) -> Node:
        if (node := self._nodes.get(id(thing))) is None:
            node = self._nodes[id(thing)] = Node(thing, path)
            if isinstance(thing, FunctionType):
                self._code_of(node, thing)
            elif isinstance(thing, MethodType):
                self._record(node, of_attribute, "__self__", thing.__self__)
                self._record(node, of_attribute, "__func__", thing.__func__)
            elif id(thing) not in self._own and not isinstance(thing, type) and is_of_user_class(type(thing)):
                node.reads[_of_type, "__class__"] = Read(_of_type, "__class__", type(thing), None, "")
            if isinstance(thing, nn.Module) and id(thing) not in self._own:
                for name, part in thing.named_modules():
                    inner = node if not name else self._node(part, (*path, *name.split(".")))
                    self._record(inner, of_module, None, of_module(part, None))
        return node

    def _node_of(self, value: Any, path: Path, *, known: bool = True) -> Node | None:
        """The node of a value that was read, None for plain ones. known: it was there before."""
        if isinstance(value, _SKIPPED) or value is MISSING:
            return None
        if isinstance(value, Tensor):
            return self._node_of_tensor(value, path)
        if not known and not self._was_there(value):
            return None
        return self._node(value, path)

    def _node_of_tensor(self, tensor: Any, path: Path = ("a tensor",)) -> Node | None:
        """A tensor that the trace doesn't know: its values count."""
        if not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor | nn.Parameter):
            return None
        if not self._was_there(tensor) and id(tensor) not in self._nodes:
            return None
        node = self._node(tensor, path)
        if (name := self.stand_ins.batch.name_of(tensor)) is not None:
            self.stand_ins.is_one(name, tensor, self._module)  # its values are the batch's
            node.itself = True
            return node
        self._record(node, of_whole, None, content(tensor))
        return node

    def _globals(self, there: dict[str, Any]) -> Node:
        return self._node(there, ())

    def _outside(self, thing: Any) -> Node | None:
        """The node of an object that was there before the iteration."""
        if (node := self._nodes.get(id(thing))) is not None:
            return node
        if isinstance(thing, ModuleType):
            return self._node(thing, (thing.__name__,))
        if isinstance(thing, type):
            return self._node(thing, (thing.__name__,)) if is_of_user_class(thing) else None
        if self._was_there(thing):
            return self._node(thing, (f"a {type(thing).__name__}",))
        return None

    def _was_there(self, thing: Any) -> bool:
        """Whether an object was there when the trace began. Only those of the youngest generation are looked
        at: a process may have millions of others."""
        if id(thing) in self._old:
            return True
        if id(thing) in self._new or not gc.is_tracked(thing):
            return False
        if self._listening:
            self._note_new()
        if id(thing) in self._new:
            return False
        self._old[id(thing)] = thing  # held, so that no other object gets its identity
        return True

    def _note_new(self) -> None:
        young = map(id, gc.get_objects(generation=0))
        self._new.update(each for each in young if each not in self._old)

    def _note_growth(self, node: Node) -> None:
        """Its content is read after something was added to it."""
        if (before := self._grown[node])[0] is not None and not before[1] and node.thing:
            self._grown[node] = before[0], users_place(at_line)

    def _record(self, node: Node, fetch: Fetch, key: Any, value: Any = NOT_GIVEN) -> None:
        value = fetch(node.thing, key) if value is NOT_GIVEN else value
        if node in self._grown:
            self._note_growth(node)
            return
        if (fetch, key) in node.reads or (callable(value) and _replaces(value)):
            return
        if key in node.written and key is not None:
            if key in node.counted and is_plain(value):
                raise TraceError(refusal((*node.path, key), value, None, users_place(at_line)))
            return
        if fetch in _CONTENT_OF and not is_plain(value) and not isinstance(value, Tensor | MethodType):
            now = fetch(node.thing, key)
            if now is not value and type(now) is type(value) and not same(now, value):
                fetch, value = _CONTENT_OF[fetch], content(now)  # another object each time, by a getter in C
        path = node.path if key is None else (*node.path, key)
        if isinstance(value, Tensor) and (name := self.stand_ins.batch.name_of(value)) is not None:
            # the trace means the input, so that an iteration must find that of its own batch there
            self.stand_ins.batch.holders[path] = Holder(fetch, node.thing, key, name)
            return
        made = None if isinstance(value, Kind) else self._node_of(value, path)
        node.reads[fetch, key] = Read(fetch, key, value, made, users_place(at_line))
        if isinstance(value, np.ndarray | bytearray | memoryview) or _is_number(value):
            self.read_whole(value)

    def _wrote(self, node: Node, key: Any, *, counts: bool) -> None:
        read = any(
            (fetch, key) in node.reads for fetch in (of_instance, of_class, of_attribute, of_entry, of_item)
        )
        if not read:  # what is read before is used, `refuse_counters` looks whether it changes
            node.written.add(key)
            if counts:
                node.counted.add(key)

    def _source(self, thing: Any, name: str) -> tuple[Fetch, str]:
        """How an attribute is read without running a user's code."""
        kind = type(thing)
        if isinstance(thing, type):
            return (of_attribute if of_bases(thing, name) is MISSING else _of_its_bases), name
        if kind.__getattribute__ not in _ORDINARY and not _is_users_function(kind.__getattribute__):
            return of_attribute, name
        base = next((each for each in kind.__mro__ if name in each.__dict__), None)
        entry = MISSING if base is None else base.__dict__[name]
        own = dict_of(thing)
        if own is not None and name in own and not hasattr(type(entry), "__set__"):
            return of_instance, name
        if base is None:
            asks = of_bases(kind, "__getattr__")
            known = asks is MISSING or _is_users_function(asks) or isinstance(thing, nn.Module)
            return (of_instance if known and own is not None else of_attribute), name
        followed = is_of_user_class(base) and (
            isinstance(entry, _RUNS) or is_of_user_class(type(entry)) or not hasattr(type(entry), "__get__")
        )
        return (of_class if followed else of_attribute), name

    def _note_large(self, node: Node, thing: Any) -> None:
        size = getattr(thing, "nbytes", 0)
        if (isinstance(size, int) and size > LARGEST) or (
            isinstance(thing, list | tuple | dict | set | deque) and len(thing) > LONGEST
        ):
            self.unwatched.append(f"{users_place(at_line)}{spell(node.path)}, which is large")

    # ── code that is followed ───────────────────────────────────────────────────────────────────────

    @_quietly
    def see(self, value: Any) -> None:
        """Follow the code that a value stands for, and that of its class."""
        kind = type(value)
        if issubclass(kind, SCALARS) and not is_of_user_class(kind):
            return
        if isinstance(value, FunctionType):
            self._follow(value)
        elif isinstance(value, MethodType):
            self.see(value.__func__)
        elif isinstance(value, partial):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.see(value.func)
                if (node := self._outside(value)) is not None:
                    for name in ("func", "args", "keywords"):
                        self._record(node, of_attribute, name, getattr(value, name))
                    self.read_whole(value.args)
                    self.read_whole(value.keywords)
        elif isinstance(value, type):
            self._see_class(value)
        elif isinstance(value, nn.Module):
            self._see_module(value)
        elif isinstance(value, _CACHED):
            self.see(value.__wrapped__)
        elif isinstance(value, defaultdict):
            self.see(value.default_factory)
        elif isinstance(value, ModuleType):
            self.see(vars(value).get("__getattr__"))
        elif not isinstance(value, Tensor):
            self._see_class(kind)

    def _see_module(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        kind = type(module)
        self._see_class(kind)
        self._record(self._node(kind, (kind.__name__,)), _of_its_bases, "forward")
        if "_modules" not in vars(module):
            return  # it is being made: its __init__ has only begun
        self._seen[id(module)] = module
        for register in FORWARD_HOOKS:
            for hook in vars(module)[register].values():
                self.see(hook)
        for part in module.children():
            self._see_module(part)
        if "forward" in vars(module):
            self.see(vars(module)["forward"])

    def _see_class(self, kind: type) -> None:
        if id(kind) in self._seen:
            return
        self._seen[id(kind)] = kind
        for base in kind.__mro__:
            if is_of_user_class(base):
                for name, entry in list(vars(base).items()):
                    self._see_entry(entry)
                    runs = name == "forward" or (name[:2] == name[-2:] == "__" and name not in _MAKING)
                    if runs and isinstance(entry, FunctionType):  # Python calls it without loading it
                        self._record(self._node(base, (base.__name__,)), _of_its_bases, name, entry)
        if type(kind) is not type:
            self._see_class(type(kind))

    def _see_entry(self, entry: Any) -> None:
        if isinstance(entry, FunctionType):
            self._follow(entry)
        elif isinstance(entry, staticmethod | classmethod):
            self._see_entry(entry.__func__)
        elif isinstance(entry, property):
            for each in (entry.fget, entry.fset):
                self._see_entry(each)
        elif isinstance(entry, functools.cached_property):
            self._see_entry(entry.func)
        elif isinstance(entry, _CACHED):
            self._see_entry(entry.__wrapped__)
        elif entry is not None and is_of_user_class(type(entry)):
            self._see_class(type(entry))

    def _follow(self, function: FunctionType) -> None:
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        for cell in function.__closure__ or ():  # decorators hold the function that they wrap
            with suppress(ValueError):
                if isinstance(cell.cell_contents, FunctionType):
                    self._follow(cell.cell_contents)
        if not self._listening or not is_of_user(function) or _is_ours(str(function.__module__)):
            return
        self._node(function, (function.__qualname__,))
        if (code := _reporting_code(function.__code__)) is None:
            self._by_names_of(function)
            return
        self._codes[function] = function.__code__
        function.__code__ = with_reader(code, Reader(self, function))

    def _code_of(self, node: Node, function: FunctionType) -> None:
        """Its code and its defaults."""
        code = self._codes.get(function, function.__code__)
        node.reads[_of_code, "__code__"] = Read(_of_code, "__code__", code, None, "")
        for name in ("__defaults__", "__kwdefaults__"):
            held = getattr(function, name)
            if held and is_of_user(function):
                node.reads[of_attribute, name] = Read(
                    of_attribute, name, held, self._node(held, node.path), ""
                )
                self.read_whole(held)

    # ── code without a source: by the names in it ───────────────────────────────────────────────────

    def _by_names_of(self, function: Any) -> None:
        if not isinstance(function, FunctionType) or not is_of_user(function):
            return
        self._sourceless = True
        code = self._codes.get(function, function.__code__)
        self._unread |= set(_names(code, "LOAD_ATTR", "LOAD_METHOD"))
        if function.__name__ not in _MAKING:
            self._stored |= set(_names(code, "STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF"))
        for name in set(_names(code, "LOAD_GLOBAL", "LOAD_NAME")) - self._stored:
            if name in function.__globals__:
                self.read_name(function, name, function.__globals__[name], free=False)
        for name in {*code.co_freevars} - self._stored:
            if (value := of_closure(function, name)) is not MISSING:
                self.read_name(function, name, value, free=True)

    @_quietly
    def _by_names(self) -> None:
        """The attributes that such code names, of all that is known, and all items."""
        if not self._sourceless:
            return
        written = self._stored.union(*(node.written for node in self._nodes.values()))
        size = -1
        while size != (size := len(self._nodes) + len(self._unread)):
            for node in [*self._nodes.values()]:
                thing = node.thing
                if isinstance(thing, dict | list | tuple | set | deque):
                    if not node.reads and len(thing) <= LONGEST and "__builtins__" not in thing:
                        self._record(node, of_content, None)
                        for each in _entries(thing):
                            self._node_of(each, node.path)
                            self.see(each)
                    continue
                if isinstance(thing, ModuleType | Tensor | FunctionType | type):
                    continue
                for base in type(thing).__mro__:
                    for method in vars(base).values() if is_of_user_class(base) else ():
                        if isinstance(method, FunctionType):
                            self._unread |= set(_names(self._codes.get(method, method.__code__), "LOAD_ATTR"))
                own = dict_of(thing) or {}
                for name in self._unread - written:
                    if name in own:
                        self._record(node, of_instance, name)
                        self.see(own[name])
                    elif is_plain(of_bases(type(thing), name)):
                        self._record(node, of_class, name)
                    elif isinstance(of_bases(type(thing), name), MemberDescriptorType):
                        self._record(node, of_attribute, name)


def _tops(nodes: list[Node]) -> list[Node]:
    """Nodes from which reads lead to all of them: those that no read leads to were found by a call that
    reports nothing. Of a circle (a part that knows its module) that nothing else leads to, the first."""
    led = {id(read.node) for _node, read in all_reads(nodes) if read.node is not None}
    tops: list[Node] = []
    reached: set[int] = set()
    for node in (*(each for each in nodes if id(each) not in led), *nodes):
        if id(node) in reached:
            continue
        tops.append(node)
        following = [node]
        while following:
            if id(each := following.pop()) not in reached:
                reached.add(id(each))
                following += [read.node for read in each.reads.values() if read.node is not None]
    return tops


def _reporting_code(code: CodeType) -> CodeType | None:
    """The rewritten code, None if there is no source of it."""
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
        if isinstance(part, CodeType):
            yield from _names(part, *operations)


def _holds(node: Node, read: Read) -> bool:
    now = read.fetch(node.thing, read.key)
    return now is read.value or same(now, read.value)


def _entries(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return list(dict.values(thing))
    return list(thing) if type(thing) in (list, tuple, set, frozenset, deque) else []


def _is_of_python_alone(kind: type) -> bool:
    """Whether all that instances hold is attributes: no base is a container or another type written in C."""
    return all(
        is_of_user_class(base) or base in (object, nn.Module, Generic, Protocol) for base in kind.__mro__
    )


def _of_type(thing: Any, _key: Any) -> Any:
    return type(thing)


def _of_super(kind: type, key: tuple[type, str]) -> Any:
    """The entry for `super().name` in a method of a class, of an object of this kind."""
    order = kind.__mro__
    after = order[order.index(key[0]) + 1 :] if key[0] in order else ()
    return next((base.__dict__[key[1]] for base in after if key[1] in base.__dict__), MISSING)


def _of_code(function: Any, name: str) -> Any:
    return getattr(function, name, MISSING)


def _of_its_bases(kind: Any, name: str) -> Any:
    """The entry of a class for an attribute of the class itself."""
    return of_bases(kind, name) if isinstance(kind, type) else MISSING


def _replaces(value: Any) -> bool:
    """Whether it is a function of this package, which stands in a library for the time of a trace."""
    if isinstance(value, partial):
        return _replaces(value.func)
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(function, FunctionType):
        return _is_ours(str(function.__globals__.get("__name__")))
    return _is_ours(str(type(value).__module__))


def _full_name(function: FunctionType, module: str, level: int) -> str:
    """The name of a module that a function imports."""
    package = function.__globals__.get("__package__") or ""
    return importlib.util.resolve_name("." * level + module, package) if level else module


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == _OURS


def _is_users_function(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and is_of_user(thing)


def _is_hashable(thing: Any) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return not isinstance(thing, Tensor)


def _is_number(value: Any) -> bool:
    """A number of another kind than Python's: Decimal, Fraction."""
    return issubclass(type(value), Number)


def _reads_by_itself(function: Any) -> bool:
    """Whether it is one of READERS; a partial that has such a one to call."""
    if isinstance(function, partial):
        return _reads_by_itself(function.func) or _is_special(function.func)
    return isinstance(function, READERS)


def _is_special(function: Any) -> bool:
    return isinstance(function, BuiltinFunctionType) and function in _SPECIAL


_CONTENT_OF: dict[Fetch, Fetch] = {of_attribute: of_attribute_content, of_item: of_item_content}
_RUNS = (property, FunctionType, classmethod, staticmethod, functools.cached_property)
_ORDINARY: set[Callable[..., Any]] = {object.__getattribute__, ModuleType.__getattribute__}
_MAKING = frozenset({"__init__", "__new__", "__repr__", "__init_subclass__", "__set_name__"})
_OF_CONTENT = frozenset({"shape", "dtype", "device", "ndim", "layout", "itemsize", "nbytes", "is_cuda"})
"""Attributes of tensors that their content tells too."""
_ONLY_WRITES = frozenset({"append", "extend", "add", "clear", "appendleft", "insert", "discard", "update"})
"""Methods of containers that add to them or empty them."""
_SPECIAL: dict[Any, Callable[..., Any]] = {
    getattr: Recording._getattr,
    hasattr: Recording._hasattr,
    setattr: Recording._setattr,
    delattr: Recording._delattr,
    object.__getattribute__: Recording._ordinary,
    object.__setattr__: Recording._setattr,
    vars: Recording._vars,
    id: Recording._id,
    operator.is_: Recording.read_same,
    operator.is_not: Recording._is_not,
    isinstance: Recording._isinstance,
    issubclass: Recording._issubclass,
    len: Recording._len,
    bool: Recording._len,
    os.getenv: Recording._getenv,
}
