"""The content of any object as something that can be compared later: containers, buffers, pickled state.

Objects that can't be taken apart (functions, classes, locks, PyTorch's modules) count by their identity.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..reach import container_of, entries_of, is_of_user_class
from ..torch_internals import FakeTensor, no_dispatch_modes, no_function_modes, version_of

LARGEST = 2**20
"""Bytes of a buffer or an array; a larger one counts by its identity."""
LARGEST_TENSOR = 2**16
"""Bytes of a tensor that is compared by its values; a larger one by its version and its memory."""
DEEPEST = 12

DEFAULT_MODE = (
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
    *DEFAULT_MODE,
    np.generic,
    Enum,
    type(...),
    type(NotImplemented),
    torch.layout,
    torch.memory_format,
)
_ENDS = (FunctionType, ModuleType, type, nn.Module)
_BUFFERS = (bytearray, memoryview)


class Missing:
    """Marker for a value that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


class Itself:
    """An object that counts by its identity."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __repr__(self) -> str:
        return f"a {type(self.thing).__name__}"


class _Alive:
    """The object that a weak reference leads to, as long as it is there."""

    __slots__ = ("_key", "_there")

    def __init__(self, reference: weakref.ref[Any]) -> None:
        there = reference()
        self._key, self._there = id(there), (lambda: None) if there is None else weakref.ref(there)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alive) and other._there() is self._there() and other._key == self._key

    def __hash__(self) -> int:
        return self._key

    def __repr__(self) -> str:
        return f"a {type(self._there()).__name__}"


class Kind(tuple[Any, ...]):
    """Content of an object as (type, parts)."""

    __slots__ = ()

    def __repr__(self) -> str:
        kind, parts = self
        if kind in _ENDS_OF:
            texts = [": ".join(map(repr, each)) if kind is dict else repr(each) for each in parts]
            return f"{_ENDS_OF[kind][0]}{', '.join(texts)}{_ENDS_OF[kind][1]}"
        if kind in (Tensor, np.ndarray) and len(parts) > 2:
            dtype, shape, *_device, data = parts
            if not isinstance(data, bytes):
                return f"{kind.__name__}{list(shape)}"
            if kind is np.ndarray:
                return repr(np.frombuffer(data, dtype).reshape(shape).tolist())
            with no_dispatch_modes(), no_function_modes():
                return repr(torch.tensor(list(data), dtype=torch.uint8).view(dtype).reshape(shape).tolist())
        if len(parts) == 1 and issubclass(kind, SCALARS):
            return repr(parts[0])
        return f"{kind.__name__}({', '.join(map(repr, parts))})"


_ENDS_OF = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def is_plain(thing: object) -> bool:
    return isinstance(thing, SCALARS)


def content(thing: Any, *, deep: bool = True, depth: int = 0, around: tuple[int, ...] = ()) -> Any:
    """Return something that is equal as long as the thing's content is.

    deep: attributes of instances of a user's classes are content too; else these count by their identity.
    """
    if isinstance(thing, float | complex | np.inexact) and thing != thing:
        return Kind((type(thing), ("nan",)))
    if isinstance(thing, SCALARS):
        return thing if type(thing) in (str, bytes) else Kind((type(thing), (thing,)))
    if isinstance(thing, Tensor):
        return tensor_content(thing)
    if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
        data = thing.tobytes() if thing.nbytes <= LARGEST else Itself(thing)
        return Kind((np.ndarray, (thing.dtype, thing.shape, data)))
    if isinstance(thing, _ENDS) or depth > DEEPEST or id(thing) in around:
        return Itself(thing)
    parts = list(_parts(thing, deep=deep))
    inner = [
        each
        if isinstance(each, bytes | Itself)
        else content(each, deep=deep, depth=depth + 1, around=(*around, id(thing)))
        for each in parts
    ]
    if isinstance(thing, set | frozenset):
        return Kind((type(thing), frozenset(inner)))
    if isinstance(thing, dict):
        pairs = tuple(zip(inner[::2], inner[1::2], strict=True))
        return Kind((type(thing), pairs))
    return Kind((type(thing), tuple(inner)))


def tensor_content(tensor: Tensor) -> Any:
    """Return the values of a small tensor, else its address and how often it was changed.

    For a fake one, which a traced iteration has left, it is the form: it has no values.
    """
    if isinstance(tensor, FakeTensor):
        return Kind((Tensor, (tensor.dtype, tuple(tensor.shape), tensor.device)))
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return Itself(tensor)
    form = (tensor.dtype, tuple(tensor.shape), tensor.device)
    if tensor.nbytes > LARGEST_TENSOR:
        return Kind((Tensor, (*form, tensor.data_ptr(), version_of(tensor))))
    with no_dispatch_modes(), no_function_modes():
        values = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        return Kind((Tensor, (*form, values.contiguous().view(torch.uint8).numpy().tobytes())))


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
    elif isinstance(thing, np.ndarray):
        yield from (thing.shape, thing.ravel().tolist())
    elif (data := _bytes_of(thing)) is not None:
        yield data if len(data) <= LARGEST else Itself(thing)
    elif isinstance(thing, MethodType):
        yield from (thing.__self__, Itself(thing.__func__))
    elif isinstance(thing, weakref.ref):
        yield _Alive(thing)
    elif isinstance(thing, ContextVar):
        yield thing.get(MISSING)
    elif isinstance(thing, threading.local):
        yield vars(thing)
    elif not deep and is_of_user_class(type(thing)):
        yield Itself(thing)
    else:
        yield from _state(thing)


def _bytes_of(thing: Any) -> bytes | None:
    """Return the bytes of an object that exposes its memory, else None.

    Such are bytearray, array, mmap, ctypes' values and memory that processes share.
    """
    shared = (
        getattr(thing, "get_obj", None) if type(thing).__module__ == "multiprocessing.sharedctypes" else None
    )
    with suppress(TypeError, ValueError, BufferError):
        return memoryview(shared() if shared is not None else thing).tobytes()
    return None


def _state(thing: Any) -> Iterator[Any]:
    """Yield an object's state: its attributes, and what pickling and copying take; itself if there is
    neither.
    """
    own = getattr(thing, "__dict__", None)
    if isinstance(own, Mapping) and own:
        yield dict(own)
    if isinstance(thing, Mapping):  # a library's, like an omegaconf.DictConfig
        with suppress(Exception):
            yield list(thing.items())
    try:
        made = thing.__reduce_ex__(2)
    except Exception:  # a lock, a generator: whatever refuses to be copied
        if not own:
            yield Itself(thing)
        return
    if isinstance(made, str):
        yield made
        return
    _function, arguments, *rest = made
    yield tuple(each for each in arguments if not isinstance(each, type))
    for each in rest:
        if each is not None and each is not own and not callable(each):
            yield list(each) if hasattr(each, "__next__") else each
