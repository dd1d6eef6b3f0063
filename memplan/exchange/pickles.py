"""Pickles of other tools, read without running any of their code.

A pickle may name any function and have it called. This reader makes Python's basic values and containers. For
the packages that a format names it makes inert records, which keep what the pickle says of an object's
attributes and do nothing. Anything else that the pickle names is refused.

A pickle of numbers, texts, lists and dicts alone goes through Python's fast reader. Any other goes through
the slow one, a seventh as fast, which refuses what would hang or crash it: see pickle_bytes.py.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, cast

from ..graphs.files.documents import read_bytes
from .pickle_bytes import is_plain

MOST_BYTES = 512 * 2**20
MOST_TUPLES, DEEPEST = 1_000_000, 200
"""Limits of a tuple: the tuples nested in it, counted each time that they are named, and their depth."""


class Record:
    """Inert stand-in for an object whose class is not loaded.

    origin: its class, with the module.
    fields: its attributes.
    """

    origin = ""

    def __init__(self, *args: object, **keywords: object) -> None:
        del args, keywords
        self.fields: dict[str, Any] = {}

    def __new__(cls, *args: object, **keywords: object) -> Record:
        del args, keywords
        made = super().__new__(cls)
        made.fields = {}
        return made

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.fields = cast("dict[str, Any]", state)

    def __setitem__(self, key: object, value: object) -> None:
        """Discard an item of a mapping's subclass."""

    def append(self, item: object) -> None:
        """Discard an item of a list's subclass."""

    def __repr__(self) -> str:
        return f"a {self.origin}"


class _Made:
    """Replacement for `copyreg._reconstructor`, by which old protocols make an object.

    It has no attributes, since a pickle could set them.
    """

    __slots__ = ()

    def __call__(self, kind: Any, *_base: object) -> Record:
        if not (isinstance(kind, type) and issubclass(kind, Record)):
            raise TypeError("what is made is no record")
        return kind()


UNBOUNDED: dict[str, Any] = {
    **{f"builtins.{kind.__name__}": kind for kind in (set, list, dict, object)},
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "copyreg._reconstructor": _Made(),
}
OLD_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules by the names that protocols 0 to 2 use."""


def unpickled(path: Path, packages: Collection[str] | None = ()) -> Any:
    """Return the content of a pickle.

    packages: those whose objects become records; None: all.
    Raises InputError or ValueError.
    """
    data = read_bytes(path, MOST_BYTES)
    if what := _other_kind(data):
        raise ValueError(f"is not a pickle{what}")
    try:
        return pickle.loads(data) if is_plain(data) else _Unpickler(data, packages).load()
    except _RefusedError as refused:
        raise ValueError(f"names {refused}, which is not read: it could run anything") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except MemoryError:
        raise ValueError("too large for this machine's memory") from None
    except Exception as error:  # broken pickles raise what their opcodes stumble over
        said = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise ValueError(f"is not a pickle that can be read: {said[:200]}") from None


def _other_kind(data: bytes) -> str:
    """Say what bytes that can't be a pickle are, as far as that is known; empty for what may be one.

    A pickle of protocol 2 or later begins with that, an older one ends with its last opcode.
    """
    if data.startswith(b"SQLite format 3\0"):
        return ": it is an SQLite database"
    if data.lstrip()[:1] in (b"{", b"["):  # no opcodes of older protocols
        return ": it is JSON, or looks like it"
    if data.startswith(pickle.PROTO) or data.rstrip(b"\r\n").endswith(pickle.STOP):
        return ""
    return "" if data.startswith((b"\x1f\x8b", b"PK")) or not data else ": it does not begin or end like one"


def text_of(value: object) -> str:
    """Describe any value in a few words for a message.

    The repr of a container is not used: lists that each name another twice have an exponentially long one.
    """
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, int) and not -(2**64) < value < 2**64:
        return f"a number of {value.bit_length()} bits"
    return repr(value) if isinstance(value, int | float | Record | None) else f"a {type(value).__name__}"


class _RefusedError(Exception):
    pass


class _Unpickler(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    """Python's unpickler in Python, with limits.

    _weights: nested count and depth of each tuple and frozenset, by its id; all of them are kept in `_alive`.
    """

    def __init__(self, data: bytes, packages: Collection[str] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._packages = packages
        self._records: dict[str, type[Record]] = {}
        self._weights: dict[int, tuple[int, int]] = {}
        self._alive: list[object] = []

    def find_class(self, module: str, name: str) -> Any:
        whole = f"{OLD_NAMES.get(module, module)}.{name}"
        if whole in UNBOUNDED:
            return UNBOUNDED[whole]
        if whole in BOUNDED:
            return _Bounded(self, BOUNDED[whole])
        if self._packages is not None and module.partition(".")[0] not in self._packages:
            raise _RefusedError(whole)
        return self._records.setdefault(whole, type("Record", (Record,), {"origin": whole}))

    def persistent_load(self, pid: object) -> Any:
        raise _RefusedError(f"the persistent object {text_of(pid)}")

    def bounded(self, items: Collection[Any], kind: type[Any]) -> Any:
        """Return the items as a tuple or frozenset that can be hashed in little time and stack.

        Raises ValueError.
        """
        # Other containers can't be keys, and so are never hashed.
        below = [self._weights.get(id(item), (0, 0)) for item in items]
        weight = 1 + sum(one for one, _depth in below)
        depth = 1 + max((depth for _one, depth in below), default=0)
        if weight > MOST_TUPLES or depth > DEEPEST:
            raise ValueError("tuples are nested too deeply")
        made = kind(items)
        # By id: to hash a deep tuple is what may take for ever.
        self._weights[id(made)] = weight, depth
        self._alive.append(made)
        return made

    # A copy: Python's own unpickler keeps its entries.
    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch}  # pyright: ignore


class _Bounded:
    """The class tuple or frozenset, as a pickle may call it."""

    __slots__ = ("_kind", "_reader")

    def __init__(self, reader: _Unpickler, kind: type[Any]) -> None:
        self._reader, self._kind = reader, kind

    def __call__(self, items: Collection[Any] = ()) -> Any:
        return self._reader.bounded(items, self._kind)


BOUNDED: dict[str, type[Any]] = {"builtins.tuple": tuple, "builtins.frozenset": frozenset}


def _from_mark(kind: type[Any]) -> Any:
    def load(reader: Any) -> None:
        items = reader.pop_mark()
        reader.append(reader.bounded(items, kind))

    return load


def _last(count: int) -> Any:
    def load(reader: Any) -> None:
        if len(reader.stack) < count:
            raise ValueError("it needs what is not there")
        items = reader.stack[-count:]
        reader.stack[-count:] = [reader.bounded(items, tuple)]

    return load


_Unpickler.dispatch |= {
    pickle.TUPLE[0]: _from_mark(tuple),
    pickle.FROZENSET[0]: _from_mark(frozenset),
    pickle.TUPLE1[0]: _last(1),
    pickle.TUPLE2[0]: _last(2),
    pickle.TUPLE3[0]: _last(3),
}
