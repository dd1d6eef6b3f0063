"""Python objects as Python's own types see them: read without calling a method of the object's class.

A class of the user's, or its metaclass, may define any special method, and that may do anything: load what it
lists, count its calls, refuse. `isinstance` asks the object's `__class__`, `kind.__mro__` the metaclass's
`__getattribute__`, a set of classes its `__hash__`. Code that walks over objects of others asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from builtins import isinstance as is_a  # so that type checkers narrow by it
else:

    def is_a(thing: object, kinds: Any) -> bool:
        """Tell whether the object's type is one of these or derives from one, whatever `__class__` says."""
        return issubclass(type(thing), kinds)


_BASES: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_ENTRIES: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_MODULE: Callable[[type], Any] = type.__dict__["__module__"].__get__
_NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
_FULL_NAME: Callable[[type], str] = type.__dict__["__qualname__"].__get__

_SIMPLE = (str, int, float, bool, complex, bytes, type(None))
_Found = TypeVar("_Found")


class Missing:
    """Marker for a value that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


def is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """Tell whether a class is one of these: `in` would ask its metaclass's `__eq__`."""
    return any(kind is each for each in kinds)


def part_of(function: object, name: str) -> Any:
    """Return what a callable says of itself, like its `__self__`; None if it says nothing, or raises."""
    try:
        return getattr(function, name, None)
    except Exception:
        return None


def is_made(thing: Any, key: object) -> bool:
    """Tell whether a dict has no such entry, and makes one when it is read, like a defaultdict."""
    makes = is_a(thing, dict) and class_entry(type(thing), "__missing__") is not MISSING
    return makes and not dict.__contains__(thing, key)


def derives_from(kind: type, abstract: type) -> bool:
    """Tell whether a class derives from an abstract one or is registered with it.

    An abstract class keeps those that it was asked about in a set: those whose metaclass has no own hash.
    """
    known = (base for base in _BASES(kind) if class_entry(type(base), "__hash__") is object.__hash__)
    return any(issubclass(base, abstract) for base in known)


def is_mapping(thing: object) -> bool:
    return derives_from(type(thing), Mapping)


def bases_of(kind: type) -> tuple[type, ...]:
    """Return a class and its bases, in the order in which Python looks attributes up."""
    return _BASES(kind)


def class_entries(kind: type) -> Mapping[str, Any]:
    """Return what the class itself defines, by name."""
    return _ENTRIES(kind)


def class_entry(kind: type, name: str) -> Any:
    """Return what the class or one of its bases defines by this name; MISSING if none does."""
    for base in _BASES(kind):  # guards ask in each iteration: a generator takes twice as long
        if name in (entries := _ENTRIES(base)):
            return entries[name]
    return MISSING


def module_of(kind: type) -> str:
    """Return the name of the module of a class; an empty text if the class puts something else there."""
    try:
        found = _MODULE(kind)
    except AttributeError:
        return ""
    return found if type(found) is str else ""


def name_of(kind: type) -> str:
    return _NAME(kind)


def full_name(kind: type) -> str:
    """Return the name of a class with that of its module."""
    return f"{module_of(kind)}.{_FULL_NAME(kind)}"


def own_attributes(thing: object) -> dict[str, Any] | None:
    """Return the attributes of an object itself; None if it has none, or its class hides them."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except Exception:  # no `__dict__`, or a property of that name
        return None
    return own if issubclass(type(own), dict) else None


def slots_of(thing: object, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield an object's slots that this class of its has, by name; not those that were never set."""
    for name, entry in [*_ENTRIES(kind).items()]:
        if type(entry) is MemberDescriptorType:
            with suppress(AttributeError):
                yield name, entry.__get__(thing, kind)


def is_simple(thing: object) -> bool:
    """Tell whether it is a number, a text or the like of Python's own type, or a tuple of such."""
    if type(thing) is tuple:
        return all(map(is_simple, thing))
    return is_one_of(type(thing), _SIMPLE)


def is_same_key(one: object, other: object) -> bool:
    """Tell whether two keys are one object, or simple and equal."""
    return one is other or (is_simple(one) and is_simple(other) and one == other)


def by_class(function: Callable[[type], _Found]) -> Callable[[type], _Found]:
    """Keep a function's results by the identity of the class: `functools.cache` asks its `__hash__`."""
    kept: dict[int, tuple[type, _Found]] = {}

    def found(kind: type) -> _Found:
        if id(kind) not in kept:
            kept[id(kind)] = kind, function(kind)  # with the class, so that no other gets its identity
        return kept[id(kind)][1]

    return found
