"""The reads that a trace has made of Python's objects, checked before each iteration: the same, or what
differs.

    Node     an object that was there before the trace, and what was read of it
    Read     one of these reads: how it is made, of what, and what it gave
    Reads    all of a trace

A value that is an object is a node itself. If an iteration finds another object at its position, it is as
good if it is of the same type and gives the same at each of the node's reads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from reprlib import Repr
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from ...torch_support.raw import MISSING, Missing, class_entry, is_a, name_of, own_attributes
from ...torch_support.reach import Path, is_of_user_class, simple_text, spelled
from ...torch_support.torch_modules import module_structure
from .contents import SCALARS, Content, content, is_plain, plain_value

Fetch = Callable[[Any, Any], Any]

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_LONGEST_TEXT = 80


@dataclass(slots=True)
class Read:
    """One read of an object.

    fetch, key: the read is `fetch(thing, key)`.
    value: what it gave.
    node: of a value that is an object.
    place: the line that read.
    backward: autograd ran that line, in a hook or a function's backward.
    """

    fetch: Fetch
    key: Any
    value: Any
    node: Node | None
    place: str
    backward: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """An object that was there before the trace, and the reads of it.

    path: how code came to the object.
    written: keys that the iteration writes.
    counted: those of `written` whose new value is made of the old one.
    itself: code asks whether it is the same object.
    """

    thing: Any
    path: Path
    reads: dict[tuple[Fetch, Any], Read] = field(default_factory=dict[tuple[Fetch, Any], Read])
    written: set[Any] = field(default_factory=set[Any])
    counted: set[Any] = field(default_factory=set[Any])
    itself: bool = False

    @property
    def replaceable(self) -> bool:
        """Tell whether another object that gives the same at each read is as good."""
        if self.itself:
            return False
        if is_a(self.thing, FunctionType | MethodType) or is_of_user_class(type(self.thing)):
            return True
        return bool(self.reads) and not callable(self.thing)


@dataclass(frozen=True, slots=True)
class Difference:
    path: Path
    now: Any
    value: Any

    def __str__(self) -> str:
        found = "not there" if is_a(self.now, Missing) else short(self.now)
        was = "not there" if is_a(self.value, Missing) else short(self.value)
        return f"{spell(self.path)} is {found}; the plan is for {was}"


class OfBatch(Protocol):
    """Interface of the reads of a batch's tensors as objects, see placeholders.py."""

    def difference(self, tensors: Mapping[str, Tensor]) -> Difference | None: ...


class Reads:
    """All reads of a trace.

    roots: the nodes that a walk starts from.
    of_batch: what was read of the batch's tensors as objects.
    """

    def __init__(self, roots: Iterable[Node], of_batch: OfBatch | None = None) -> None:
        self.of_batch = of_batch
        self._roots = list(roots)
        self._nodes = self._reached()

    def __len__(self) -> int:
        return sum(len(node.reads) for node in self._nodes)

    def difference(self, inputs: Mapping[str, Tensor] = MappingProxyType({})) -> Difference | None:
        """Return the first read that gives something else now.

        inputs: the batch's tensors.
        """
        if self.of_batch is not None and (found := self.of_batch.difference(inputs)) is not None:
            return found
        replaced = False
        for node in self._nodes:
            thing = node.thing
            for read in node.reads.values():
                now = read.fetch(thing, read.key)
                if now is read.value or same(now, read.value):
                    continue
                found = _compared(now, read, node.path)
                if is_a(found, Difference):
                    return found
                # Another object is there that gives the same: from here on it is the one to look at. A later
                # change of the old one is none of the code's any more, and one of the new one is.
                read.value, read.node, replaced = now, found, True
        if replaced:
            self._nodes = self._reached()
        return None

    def text(self) -> list[str]:
        """Return each simple value that was read, as text."""
        rows = (
            f"{spell((*node.path, read.key))} {simple_text(read.value)}"
            for node in self._nodes
            for read in node.reads.values()
            if is_plain(read.value)
        )
        return sorted({row for row in rows if " at 0x" not in row})

    def rows(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield what was read: the object, the attribute or item, and what it gave."""
        return ((node.thing, read.key, read.value) for node in self._nodes for read in node.reads.values())

    def of_tensors(self) -> set[int]:
        """Return the identities of tensors whose values are compared."""
        return {
            id(read.value) for node in self._nodes for read in node.reads.values() if is_a(read.value, Tensor)
        }

    def _reached(self) -> list[Node]:
        """Return the nodes that some read leads to: the code does not come to the others any more."""
        seen: dict[int, Node] = {id(node): node for node in self._roots}
        following = [*self._roots]
        while following:
            for read in following.pop().reads.values():
                if read.node is not None and id(read.node) not in seen:
                    seen[id(read.node)] = read.node
                    following.append(read.node)
        return [node for node in seen.values() if node.reads]


def _compared(now: Any, read: Read, path: Path) -> Node | Difference | None:
    """Return the node of another object that is as good, or what is different."""
    where = (*path, read.key)
    node = read.node
    if node is None or type(now) is not type(node.thing) or is_a(now, Missing):
        return Difference(where, now, read.value)
    if not node.replaceable:
        return Difference(where, now, read.value)
    # Another function with the same code is as good, if its closure and defaults give the same: those are
    # reads of its node.
    if is_a(now, FunctionType) and now.__code__ is not node.thing.__code__:
        return Difference(where, now, read.value)
    made = Node(now, node.path, written=node.written, counted=node.counted)
    for key, each in node.reads.items():
        there = each.fetch(now, each.key)
        if there is each.value or same(there, each.value):
            made.reads[key] = each
            continue
        found = _compared(there, each, node.path)
        if is_a(found, Difference):
            return found
        made.reads[key] = Read(each.fetch, each.key, there, found, each.place)
    return made


def same(now: Any, value: Any) -> bool:
    # First: `==` between other types may run anybody's code.
    if type(now) is not type(value):
        return False
    if is_a(now, SCALARS):
        now, value = plain_value(now), plain_value(value)
        # NaN counts as equal to NaN.
        return bool(now == value or (now != now and value != value))
    if is_a(now, MethodType):
        return now.__self__ is value.__self__ and now.__func__ is value.__func__
    return is_a(now, Content) and now == value


# ── how reads are made ──────────────────────────────────────────────────────────────────────────────


def of_instance(thing: Any, name: str) -> Any:
    return (own_attributes(thing) or {}).get(name, MISSING)


def of_class(thing: Any, name: str) -> Any:
    """Return the entry of a class for an attribute that instances don't have; the instance's if it has one
    now.
    """
    own = own_attributes(thing)
    return own[name] if own is not None and name in own else of_bases(type(thing), name)


def of_bases(kind: type, name: str) -> Any:
    """Return the entry of a class or of one of its bases."""
    return class_entry(kind, name)


def or_missing(read: Fetch) -> Fetch:
    """Return a fetch that gives MISSING if the read raises, as another object's property may."""

    def fetch(thing: Any, key: Any) -> Any:
        try:
            return read(thing, key)
        except Exception:
            return MISSING

    return fetch


of_attribute = or_missing(getattr)
"""Read an attribute as Python does, by a property of a library if need be; MISSING where there is none."""
of_item = or_missing(operator.getitem)
of_length = or_missing(lambda thing, _key: len(thing))
of_membership = or_missing(operator.contains)
of_instance_of = or_missing(isinstance)
of_subclass_of = or_missing(issubclass)


def of_entry(thing: dict[Any, Any], key: Any) -> Any:
    return dict.get(thing, key, MISSING)


class Made:
    """The key of an entry that a dict makes when it is read, like a defaultdict's, and what it has made."""

    def __init__(self, key: Any, value: Any) -> None:
        self.key, self.value = key, value

    def __str__(self) -> str:
        return str(self.key)


def of_made(thing: dict[Any, Any], made: Made) -> Any:
    """Return that entry; as it was made if it isn't there yet."""
    return dict.get(thing, made.key, made.value)


@or_missing
def of_closure(function: FunctionType, place: str) -> Any:
    """Return the variable of a closure by its name."""
    cells = function.__closure__ or ()
    return cells[function.__code__.co_freevars.index(place)].cell_contents


def of_attribute_content(thing: Any, name: str) -> Any:
    return content(of_attribute(thing, name))


def of_item_content(thing: Any, key: Any) -> Any:
    return content(of_item(thing, key))


def of_content(thing: Any, _key: Any) -> Any:
    return content(thing, deep=False)


def of_whole(thing: Any, _key: Any) -> Any:
    return content(thing)


def of_loose_content(thing: Any, _key: Any) -> Any:
    """As `of_content`, but objects of libraries count by their identity."""
    return content(thing, deep=False, libraries=False)


def of_loose_whole(thing: Any, _key: Any) -> Any:
    return content(thing, libraries=False)


def of_module(thing: nn.Module, _key: Any) -> Any:
    """Return the content of a PyTorch module outside the planned one: its class, structure and attributes."""
    simple = {name: value for name, value in vars(thing).items() if is_plain(value) and name[0] != "_"}
    return content((type(thing), *module_structure(thing), simple))


def spell(path: Path) -> str:
    """Write a path as a user would: `module.net.factor`."""
    texts = (spelled((key,)) for key in path if key is not None)
    return ".".join(text for text in texts if text and not text.startswith("__"))


def short(value: Any) -> str:
    """Write a value in one line: an array or a text may have many."""
    shown = content(value) if is_a(value, Tensor | np.ndarray) else value
    try:
        text = repr(shown) if is_a(shown, Content) else _SHORT.repr(shown)
    except Exception:  # a `__repr__` of the user's
        text = f"a {name_of(type(shown))}"
    text = " ".join(text.split()).replace("FakeTensor", "Tensor")
    return text if len(text) <= _LONGEST_TEXT else f"{text[:40]}…{text[-35:]}"


def all_reads(nodes: Iterable[Node]) -> Iterator[tuple[Node, Read]]:
    for node in nodes:
        yield from ((node, read) for read in [*node.reads.values()])
