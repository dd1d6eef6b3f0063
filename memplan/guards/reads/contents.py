"""The content of any object as something that can be compared later: containers, buffers, pickled state.

Objects that can't be taken apart (functions, classes, locks, PyTorch's modules and operators) count by their
identity. No method of a user's class is called: its attributes, slots, and what its bases keep count.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...torch_support.raw import (
    MISSING,
    bases_of,
    class_entries,
    is_a,
    is_mapping,
    is_one_of,
    module_of,
    name_of,
    own_attributes,
    part_of,
    slots_of,
)
from ...torch_support.reach import container_of, entries_of, is_of_python, is_of_user_class
from ...torch_support.torch_fakes import FakeTensor, no_dispatch_modes, no_function_modes
from ...torch_support.torch_operators import OPERATORS
from ...torch_support.torch_tensors import version_of

LARGEST = 2**20
"""Bytes of a buffer or an array; a larger one counts by its identity."""
LARGEST_TENSOR = 2**16
"""Bytes of a tensor that is compared by its values; a larger one by its version and its memory."""
DEEPEST = 12

SIMPLE_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
)
SCALARS = (
    *SIMPLE_TYPES,
    np.generic,
    Enum,
    type(...),
    type(NotImplemented),
    torch.layout,
    torch.memory_format,
)
_ENDS = (FunctionType, ModuleType, type, nn.Module, *OPERATORS)
_BUFFERS = (bytearray, memoryview)


class Itself:
    """An object that counts by its identity."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return is_a(other, Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __repr__(self) -> str:
        return f"a {name_of(type(self.thing))}"


class _Alive:
    """The object that a weak reference leads to, as long as it is there."""

    __slots__ = ("_key", "_there")

    def __init__(self, reference: weakref.ref[Any]) -> None:
        there = reference()
        self._key, self._there = id(there), (lambda: None) if there is None else weakref.ref(there)

    def __eq__(self, other: object) -> bool:
        # The key too: of two objects that are gone both references give None.
        return is_a(other, _Alive) and other._there() is self._there() and other._key == self._key

    def __hash__(self) -> int:
        return self._key

    def __repr__(self) -> str:
        return f"a {name_of(type(self._there()))}"


class Content(tuple[Any, ...]):
    """Content of an object as (type, parts)."""

    __slots__ = ()

    def __repr__(self) -> str:
        kind, parts = self
        if kind in _ENDS_OF:
            texts = [": ".join(map(repr, each)) if kind is dict else repr(each) for each in parts]
            return f"{_ENDS_OF[kind][0]}{', '.join(texts)}{_ENDS_OF[kind][1]}"
        if kind in (Tensor, np.ndarray) and len(parts) > 2:
            dtype, shape, *_device, data = parts
            if not is_a(data, bytes):
                return f"{name_of(kind)}{list(shape)}"
            if kind is np.ndarray:
                return repr(np.frombuffer(data, dtype).reshape(shape).tolist())
            with no_dispatch_modes(), no_function_modes():
                return repr(
                    torch.tensor(list(data), dtype=torch.uint8, device="cpu")
                    .view(dtype)
                    .reshape(shape)
                    .tolist()
                )
        if len(parts) == 1 and issubclass(kind, SCALARS):
            return repr(parts[0])
        return f"{name_of(kind)}({', '.join(map(repr, parts))})"


_ENDS_OF = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def is_itself(found: Any, thing: object) -> bool:
    """Tell whether nothing is known of a thing but its identity, by its content."""
    if type(found) is Content and len(found[1]) == 1:
        found = found[1][0]
    return type(found) is Itself and found.thing is thing


def is_plain(thing: object) -> bool:
    return is_a(thing, SCALARS)


def plain_value(thing: Any) -> Any:
    """Return a scalar as one of Python's own type: a user's class may compare otherwise."""
    kind = type(thing)
    if is_one_of(kind, SIMPLE_TYPES) or not is_of_user_class(kind):
        return thing
    if is_a(thing, Enum):
        return Itself(thing)
    return next((made(thing) for base, made in _OF_PYTHON if is_a(thing, base)), thing)


_OF_PYTHON: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__pos__),
    (str, str.__str__),
    (bytes, lambda thing: bytes.__getitem__(thing, slice(None))),
)


def content(
    thing: Any, *, deep: bool = True, libraries: bool = True, depth: int = 0, around: tuple[int, ...] = ()
) -> Any:
    """Return something that is equal as long as the thing's content is.

    deep: attributes of instances of a user's classes are content too; else these count by their identity.
    libraries: so are those of a library's objects.
    """
    if is_a(thing, SCALARS):
        value = plain_value(thing)
        if is_a(value, float | complex | np.inexact) and value != value:
            return Content((type(thing), ("nan",)))
        return value if is_one_of(type(thing), (str, bytes)) else Content((type(thing), (value,)))
    if is_a(thing, Tensor):
        return tensor_content(thing)
    if is_a(thing, np.ndarray) and not thing.dtype.hasobject:
        data = thing.tobytes() if thing.nbytes <= LARGEST else Itself(thing)
        return Content((np.ndarray, (thing.dtype, thing.shape, data)))
    # An object inside of itself counts by its identity there. `around` has the objects on the way alone, not
    # all that were seen: one that is there twice counts twice, wherever it is.
    if is_a(thing, _ENDS) or depth > DEEPEST or id(thing) in around:
        return Itself(thing)
    if not (libraries or is_of_user_class(type(thing)) or is_of_python(type(thing))):
        return Itself(thing)
    parts = list(_parts(thing, deep=deep))
    around = (*around, id(thing))
    inner = [
        each
        if is_a(each, Itself) or type(each) is bytes
        else content(each, deep=deep, libraries=libraries, depth=depth + 1, around=around)
        for each in parts
    ]
    if is_a(thing, set | frozenset):
        return Content((type(thing), frozenset(inner)))
    if is_a(thing, dict):
        pairs = tuple(zip(inner[::2], inner[1::2], strict=True))
        return Content((type(thing), pairs))
    return Content((type(thing), tuple(inner)))


def tensor_content(tensor: Tensor) -> Any:
    """Return the values of a small tensor, else its address and how often it was changed.

    For a fake one, which a traced iteration has left, it is the form: it has no values.
    """
    if is_a(tensor, FakeTensor):
        return Content((Tensor, (tensor.dtype, tuple(tensor.shape), tensor.device)))
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return Itself(tensor)
    form = (tensor.dtype, tuple(tensor.shape), tensor.device)
    if tensor.nbytes > LARGEST_TENSOR:
        return Content((Tensor, (*form, tensor.data_ptr(), version_of(tensor))))
    with no_dispatch_modes(), no_function_modes():
        values = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        # As bytes: NaN equals itself.
        return Content((Tensor, (*form, values.contiguous().view(torch.uint8).numpy().tobytes())))


def _parts(thing: Any, *, deep: bool) -> Iterator[Any]:
    """Yield the objects that the thing consists of, bytes, or the thing itself if nothing is known of it."""
    if (base := container_of(thing)) is not None:
        found = entries_of(thing, base)
        if found is None:
            yield Itself(thing)
        elif issubclass(base, dict):
            yield from chain.from_iterable(found)
        else:
            yield from (value for _key, value in found)
    elif is_a(thing, np.ndarray):
        yield from (thing.shape, thing.ravel().tolist())
    elif (data := _bytes_of(thing)) is not None:
        yield data if len(data) <= LARGEST else Itself(thing)
    elif is_a(thing, MethodType):
        yield from (thing.__self__, Itself(thing.__func__))
    elif is_a(thing, weakref.ref):
        yield _Alive(thing)
    elif is_a(thing, ContextVar):
        yield thing.get(MISSING)
    elif is_a(thing, threading.local):
        yield vars(thing)
    elif not deep and is_of_user_class(type(thing)):
        yield Itself(thing)
    else:
        yield from _state(thing)


def _reduced_by(kind: type) -> type:
    """Return the class that knows the state of a kind's objects: the first of no user that says it."""
    others = (base for base in bases_of(kind) if not is_of_user_class(base))
    return next(base for base in others if not _REDUCE.isdisjoint(class_entries(base)))


def _reduced(thing: Any, by: Any) -> Any:
    """Return what a class says of an object's state, whatever the classes that derive from it say."""
    own = class_entries(by)
    if "__reduce_ex__" in own:
        return by.__reduce_ex__(thing, 2)
    return by.__reduce__(thing) if "__reduce__" in own else (type, (), by.__getstate__(thing))


_REDUCE = frozenset({"__reduce_ex__", "__reduce__", "__getstate__"})


def _bytes_of(thing: Any) -> bytes | None:
    """Return the bytes of an object that exposes its memory, else None.

    Such are bytearray, array, mmap, ctypes' values and memory that processes share.
    """
    shared = part_of(thing, "get_obj") if module_of(type(thing)) == "multiprocessing.sharedctypes" else None
    with suppress(Exception):  # it has no buffer, or says so in its own way
        return memoryview(shared() if shared is not None else thing).tobytes()
    return None


_NOT_A_LOGGERS = ("_cache", "manager", "handlers")
"""Attributes of a logger that are no level and are filled lazily: its answers, all loggers, the handlers."""


def _state(thing: Any) -> Iterator[Any]:
    """Yield an object's state: its attributes, and what pickling and copying take; itself if there is
    neither.
    """
    own = own_attributes(thing)
    if own:
        logs = is_a(thing, logging.Logger)
        yield {name: part for name, part in dict.items(own) if not (logs and name in _NOT_A_LOGGERS)}
        if logs:
            yield logging.root.manager.disable
    kind = type(thing)
    users = is_of_user_class(kind)
    if users:
        slots = [slot for base in bases_of(kind) for slot in slots_of(thing, base)]
        yield from (value for _name, value in slots)
    # What pickling takes is the only way into an object written in C: a Decimal, an OrderedDict's order. A
    # user's `__reduce__` is not asked, since it may do anything; that of the class below it is.
    by = _reduced_by(kind)
    if users and by is object:  # there are only attributes and slots
        return
    if not users and is_mapping(thing):  # a library's, like an omegaconf.DictConfig
        with suppress(Exception):
            yield list(thing.items())
    try:
        made = _reduced(thing, by)
    except Exception:  # a lock, a generator: whatever refuses to be copied
        if not own:
            yield Itself(thing)
        return
    if is_a(made, str):
        yield made
        return
    _function, arguments, *rest = made
    yield tuple(each for each in arguments if not is_a(each, type))
    for each in rest:
        if each is not None and each is not own and not callable(each):
            yield list(each) if hasattr(each, "__next__") else each
