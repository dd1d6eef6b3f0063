"""The objects that were there before a trace, and what is read of them.

Each is a node. What the iteration makes is its own: the collector's youngest generation tells it apart.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from threading import RLock, Thread, current_thread, get_ident
from types import (
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from torch import Tensor, nn

from ...torch_support.raw import (
    MISSING,
    bases_of,
    class_entries,
    class_entry,
    is_a,
    name_of,
    own_attributes,
    part_of,
)
from ...torch_support.reach import LONGEST, Path, container_of, is_of_user, is_of_user_class
from ...torch_support.torch_autograd import in_backward
from ...torch_support.torch_fakes import FakeTensor
from .carried import Carried, Counter, StateError, refusal
from .contents import LARGEST, Content, content, is_plain
from .placeholders import Holder, OfBatch, Placeholders
from .predicates import SKIPPED, is_number, is_users_function, of_code, of_its_bases, of_type, replaces
from .reader import users_place
from .reads import (
    Fetch,
    Node,
    Read,
    of_attribute,
    of_attribute_content,
    of_bases,
    of_class,
    of_entry,
    of_instance,
    of_item,
    of_item_content,
    of_module,
    of_whole,
    same,
    spell,
)
from .youngest import Youngest

NOT_GIVEN = object()
_PATIENCE = 10.0
"""Seconds."""


_Made = TypeVar("_Made")
_Given = ParamSpec("_Given")
_Self = TypeVar("_Self", bound="Nodes")


def quietly(report: Callable[Concatenate[_Self, _Given], _Made]) -> Callable[..., _Made]:
    """Wrap a report so that nothing else is reported during it: it may run code of the user's objects."""

    @functools.wraps(report)
    def quiet(self: _Self, *arguments: _Given.args, **keywords: _Given.kwargs) -> _Made:
        thread, outer = get_ident(), self._busy.copy()
        self._busy.add(thread)
        # Another thread's report is over soon, unless it waits for this one: then both go on.
        locked = self._reporting_now.acquire(timeout=_PATIENCE)
        try:
            return report(self, *arguments, **keywords)
        finally:
            if locked:
                self._reporting_now.release()
            if thread not in outer:
                self._busy.discard(thread)

    return quiet


class Nodes(ABC):
    """The objects that were there when the trace began, by identity, and the reads of each."""

    def __init__(
        self,
        module: nn.Module,
        others: Mapping[str, Any],
        tensors: Mapping[str, Tensor] = MappingProxyType({}),
        *,
        runs_again: bool = False,
    ) -> None:
        """Note what the module and the others reach.

        others: the roots besides the module, by name: a loss function.
        tensors: the batch's.
        runs_again: the code runs once more after each planned iteration, so that it may read what it
            changes.
        """
        self.stand_ins = Placeholders(OfBatch(tensors))
        self._module, self._others = module, dict(others)
        planned = [each for each in (module, *self._others.values()) if is_a(each, nn.Module)]
        self._own = {id(part) for each in planned for part in each.modules()}
        self._thread, self._listening = 0, False
        self._nodes: dict[int, Node] = {}
        self._seen: dict[int, Any] = {}
        self._codes: dict[FunctionType, CodeType] = {}
        self._youngest = Youngest()
        self._busy: set[int] = set()
        self._reporting_now = RLock()
        self._others_threads: set[Thread] = set()
        self._helping: set[int] = set()
        self._sourceless = False
        self._unread: set[str] = set()
        self._stored: set[str] = set()
        self._own_state: set[int] = set()
        self._loose: dict[int, Any] = {}
        self._grown: dict[Node, tuple[Any, str]] = {}
        self._runs_again = runs_again
        self.unwatched: list[str] = []
        self.left: list[str] = []
        self.carried: list[Carried] = []
        self.counters: list[Counter] = []

    @abstractmethod
    def see(self, value: Any) -> None: ...

    @abstractmethod
    def read_name(self, function: FunctionType, name: str, value: Any, *, free: bool) -> None: ...

    @abstractmethod
    def read_whole(self, thing: Any, *, deep: bool = False, depth: int = 0) -> None: ...

    @property
    def listens(self) -> bool:
        return self._listening and get_ident() not in self._busy and self._is_of_trace()

    def _is_of_trace(self) -> bool:
        """Tell whether this thread is the trace's, was started during it, or runs what the trace gave it."""
        if get_ident() == self._thread:
            return True
        thread = current_thread()
        return thread not in self._others_threads or get_ident() in self._helping

    def _node(self, thing: Any, path: Path) -> Node:
        if (node := self._nodes.get(id(thing))) is None:
            node = self._nodes[id(thing)] = Node(thing, path)
            if is_a(thing, FunctionType):
                self._code_of(node, thing)
            elif is_a(thing, MethodType):
                self._record(node, of_attribute, "__self__", thing.__self__)
                self._record(node, of_attribute, "__func__", thing.__func__)
            elif id(thing) not in self._own and not is_a(thing, type) and is_of_user_class(type(thing)):
                node.reads[of_type, "__class__"] = Read(of_type, "__class__", type(thing), None, "")
            if is_a(thing, nn.Module) and id(thing) not in self._own:
                for name, part in thing.named_modules():
                    inner = node if not name else self._node(part, (*path, *name.split(".")))
                    self._record(inner, of_module, None, of_module(part, None))
        return node

    def _node_of(self, value: Any, path: Path, *, known: bool = True) -> Node | None:
        """Return the node of a value that was read, None for simple ones.

        known: it was there before.
        """
        if is_a(value, SKIPPED) or value is MISSING:
            return None
        if is_a(value, Tensor):
            return self._node_of_tensor(value, path)
        if not known and not self._youngest.was_there(value):
            return None
        return self._node(value, path)

    def _node_of_tensor(self, tensor: Any, path: Path = ("a tensor",)) -> Node | None:
        """Return the node of a tensor that the trace doesn't know: its values count."""
        if not is_a(tensor, Tensor) or is_a(tensor, FakeTensor | nn.Parameter):
            return None
        if not self._youngest.was_there(tensor) and id(tensor) not in self._nodes:
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
        """Return the node of an object that was there before the iteration."""
        if (node := self._nodes.get(id(thing))) is not None:
            return node
        if is_a(thing, ModuleType):
            return self._node(thing, (thing.__name__,))
        if is_a(thing, type):
            return self._node(thing, (name_of(thing),)) if is_of_user_class(thing) else None
        if self._youngest.was_there(thing):
            return self._node(thing, (f"a {name_of(type(thing))}",))
        return None

    def _note_growth(self, node: Node) -> None:
        """Note that an object's content is read after something was added to it."""
        if (before := self._grown[node])[0] is not None and not before[1] and node.thing:
            self._grown[node] = before[0], users_place()

    def _record(self, node: Node, fetch: Fetch, key: Any, value: Any = NOT_GIVEN) -> None:
        """Record a read of an object, unless it reads what the iteration itself has put there.

        value: what the code got; without it the fetch is made.
        """
        value = fetch(node.thing, key) if value is NOT_GIVEN else value
        if node in self._grown:  # its content is no more what it was before the iteration
            self._note_growth(node)
            return
        # The first read of a key counts: it gave what was there before the iteration wrote anything.
        if (fetch, key) in node.reads or (callable(value) and replaces(value)):
            return
        if key in node.written and key is not None:
            # What it has written, it reads back in each iteration; but a number that was counted up is made
            # of the one that was there before.
            if key in node.counted and is_plain(value):
                line = refusal((*node.path, key), value, None, users_place())
                if not self._runs_again or in_backward():
                    raise StateError(line)
                self.counters.append(Counter(node.thing, key, line))
            return
        if fetch in _CONTENT_OF and not is_plain(value) and not is_a(value, Tensor | MethodType):
            now = fetch(node.thing, key)
            if now is not value and type(now) is type(value) and not same(now, value):
                fetch, value = _CONTENT_OF[fetch], content(now)  # another object each time, by a getter in C
        path = node.path if key is None else (*node.path, key)
        if is_a(value, Tensor) and (name := self.stand_ins.batch.name_of(value)) is not None:
            # the trace means the input, so that an iteration must find that of its own batch there
            self.stand_ins.batch.holders[path] = Holder(fetch, node.thing, key, name)
            return
        made = None if is_a(value, Content) else self._node_of(value, path)
        node.reads[fetch, key] = Read(
            fetch=fetch, key=key, value=value, node=made, place=users_place(), backward=in_backward()
        )
        if is_a(value, np.ndarray | bytearray | memoryview) or is_number(value):
            self.read_whole(value)

    def _wrote(self, node: Node, key: Any, *, counts: bool) -> None:
        if in_backward():
            self._note_left(node, key)
        read = any(
            (fetch, key) in node.reads for fetch in (of_instance, of_class, of_attribute, of_entry, of_item)
        )
        if not read:  # what is read before is used: `_record` refuses it if it is counted up
            node.written.add(key)
            if counts:
                node.counted.add(key)

    def _source(self, thing: Any, name: str) -> tuple[Fetch, str]:
        """Return a function that reads an attribute without running a user's code, and the key of the
        read.
        """
        kind = type(thing)
        if is_a(thing, type):
            return (of_attribute if of_bases(thing, name) is MISSING else of_its_bases), name
        reads = class_entry(kind, "__getattribute__")
        if not any(reads is each for each in _ORDINARY) and not is_users_function(reads):
            return of_attribute, name
        base = next((each for each in bases_of(kind) if name in class_entries(each)), None)
        entry = MISSING if base is None else class_entries(base)[name]
        own = own_attributes(thing)
        if own is not None and name in own and class_entry(type(entry), "__set__") is MISSING:
            return of_instance, name
        if base is None:
            asks = of_bases(kind, "__getattr__")
            known = asks is MISSING or is_users_function(asks) or is_a(thing, nn.Module)
            return (of_instance if known and own is not None else of_attribute), name
        followed = is_of_user_class(base) and (
            is_a(entry, _RUNS)
            or is_of_user_class(type(entry))
            or class_entry(type(entry), "__get__") is MISSING
        )
        return (of_class if followed else of_attribute), name

    def _note_left(self, node: Node, key: Any) -> None:
        """Note what a hook changes in backward, where a plan runs no code of the user's."""
        name = spell((*node.path, key))
        self.left.append(f"{users_place()}changes {name} in backward, where a plan runs no hook")

    def _note_large(self, node: Node, thing: Any) -> None:
        size = 0 if is_of_user_class(type(thing)) else part_of(thing, "nbytes")
        base = container_of(thing)
        if (is_a(size, int) and size > LARGEST) or (base is not None and base.__len__(thing) > LONGEST):
            self.unwatched.append(f"{users_place()}{spell(node.path)}, which is large")

    def _code_of(self, node: Node, function: FunctionType) -> None:
        """Record a function's code and its defaults."""
        code = self._codes.get(function, function.__code__)
        node.reads[of_code, "__code__"] = Read(of_code, "__code__", code, None, "")
        for name in ("__defaults__", "__kwdefaults__"):
            held = getattr(function, name)
            if held and is_of_user(function):
                node.reads[of_attribute, name] = Read(
                    of_attribute, name, held, self._node(held, node.path), ""
                )
                self.read_whole(held)


_CONTENT_OF: dict[Fetch, Fetch] = {of_attribute: of_attribute_content, of_item: of_item_content}
_RUNS = (property, FunctionType, classmethod, staticmethod, functools.cached_property)
_ORDINARY: tuple[Callable[..., Any], ...] = (object.__getattribute__, ModuleType.__getattribute__)
