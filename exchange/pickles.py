"""Pickles of other tools, read without running anything of theirs.

A pickle may name any function and have it called. Here it gets Python's plain values and containers; of the
packages that a format names it gets inert records, which keep what the pickle says of an object's attributes
and do nothing. Whatever else it names is refused.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from ..graphs.files.documents import read_bytes

MOST_BYTES = 512 * 2**20


class Record:
    """What a pickle says of an object of a class that is not loaded. origin: its class, with the module.
    fields: its attributes."""

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
        """Items of a mapping's subclass are not kept."""

    def append(self, item: object) -> None:
        """Nor those of a list's."""

    def __repr__(self) -> str:
        return f"a {self.origin}"


def _made(kind: Any, *_base: object) -> Record:
    """As `copyreg._reconstructor`, by which old protocols make an object."""
    if not (isinstance(kind, type) and issubclass(kind, Record)):
        raise TypeError("what is made is no record")
    return kind()


PLAIN: dict[str, Any] = {
    **{f"builtins.{kind.__name__}": kind for kind in (set, frozenset, list, dict, tuple, object)},
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "copyreg._reconstructor": _made,
}
OLD_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg"}
"""Modules as protocols 0 to 2 call them."""


def unpickled(path: Path, packages: Collection[str] | None = ()) -> Any:
    """What a pickle holds. packages: those whose objects become records; None: all. Raises InputError or
    ValueError."""
    data = read_bytes(path, MOST_BYTES)
    try:
        return _Unpickler(data, packages).load()
    except _RefusedError as refused:
        raise ValueError(f"names {refused}, which is not read: it could run anything") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except MemoryError:
        raise ValueError("too large for this machine's memory") from None
    except Exception as error:  # broken pickles raise what their opcodes stumble over
        raise ValueError(f"is not a pickle that can be read: {error}") from None


class _RefusedError(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, packages: Collection[str] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._packages = packages
        self._records: dict[str, type[Record]] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{OLD_NAMES.get(module_name, module_name)}.{global_name}"
        if name in PLAIN:
            return PLAIN[name]
        if self._packages is not None and module_name.partition(".")[0] not in self._packages:
            raise _RefusedError(name)
        return self._records.setdefault(name, type("Record", (Record,), {"origin": name}))

    def persistent_load(self, pid: object, /) -> Any:
        raise _RefusedError(f"the persistent object {pid!r}")
