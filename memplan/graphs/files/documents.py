"""Documents on disk: JSON or YAML by suffix, also with `.gz` after it; read with limits, written whole.

A file is written under another name in its folder and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tempfile
import zlib
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from stat import S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISREG, S_ISSOCK
from sys import get_int_max_str_digits
from time import time
from typing import Any

from ..errors import InputError
from .fields import twice
from .yaml_dialect import dump_yaml, load_yaml

MOST_BYTES = {".json": 512 * 2**20, ".yaml": 64 * 2**20, ".yml": 64 * 2**20}
"""The largest file that is read, uncompressed. A million operations take about 250 MB of JSON. What is read
takes at most 32 bytes of memory a byte of JSON and 64 a byte of YAML."""

_MOST_NAMES = 5000
"""Files of a folder among which a close name is looked for."""
_NAMED = 3
"""Files that are named at most if a name without a suffix may be any of them."""

MOST_UNPACKED = 50
"""How many times its size a packed file may unpack to, beyond the first MiB. Graphs unpack to ten times."""


def read_document(path: Path) -> object:
    """Return the data in a file. Raises InputError with one line: the file and what is wrong with it."""
    return parse_document(read_bytes(path, MOST_BYTES[_suffix_to_read(path)]), path)


def parse_document(raw: bytes, path: Path) -> object:
    """Return the data in a file's unpacked bytes. Raises InputError like `read_document`."""
    try:
        text = raw.decode("utf-8")
        del raw
        document = _load_json(text) if document_suffix(path) == ".json" else load_yaml(text)
        # The search is cheap, and the walk through the document is needed only if it finds an escape.
        if _HALF_CHARACTER.search(text):
            _refuse_half_characters(document)
        return document
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply") from None
    except MemoryError:
        raise InputError(f"{path}: too large for this machine's memory") from None
    # After UnicodeDecodeError and JSONDecodeError, which are ValueErrors too.
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):  # Python's own, which names a function to call
            raise InputError(f"{path}: a number of more than {get_int_max_str_digits():,} digits") from None
        raise InputError(f"{path}: {error}") from None


def write_document(document: object, path: Path) -> None:
    """Write `document` whole or not at all. Raises InputError if the path cannot be written."""
    data = document_bytes(document, path)
    try:
        # mtime=0: equal documents give equal bytes.
        write_whole(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def document_bytes(document: object, path: Path) -> bytes:
    """Return the unpacked bytes of a document in the format of the path's suffix. Raises InputError."""
    suffix = document_suffix(path)
    try:
        if suffix == ".json":
            # dumps, since dump does not use json's compiled encoder.
            text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            return f"{text}\n".encode()
        buffer = io.StringIO()
        dump_yaml(document, buffer)
        return buffer.getvalue().encode()
    except ValueError as error:  # infinite, or half a character: a graph that was made in memory
        raise InputError(f"{path}: cannot be written: {error}") from None


def write_whole(data: bytes, path: Path, mode: int | None = None) -> None:
    """Write the data to a file in the same folder, then rename it: readers see the old file or the new
    one.

    mode: the file's permissions, by default those of new files.
    """
    _sweep(path.parent)
    # In the same folder: os.replace does not work across file systems.
    handle, temporary = tempfile.mkstemp(prefix=_BESIDE, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp gives mode 600, and the umask can be read only by setting it.
        if mode is None:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C as well
        os.unlink(temporary)
        raise


_BESIDE = ".memplan-"
_FORGOTTEN_SECONDS = 3600.0


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left there."""
    for temporary in folder.glob(f"{_BESIDE}*"):
        with suppress(OSError):
            if time() - temporary.lstat().st_mtime > _FORGOTTEN_SECONDS:
                temporary.unlink()


def _suffix_to_read(path: Path) -> str:
    """Return the suffix as document_suffix does. Raises InputError by what the file is, if it is there."""
    try:
        return document_suffix(path)
    except InputError:
        regular_size(path)
        if path.suffix == ".py":
            way = f"plan profile {path} -o graph.yaml"
            raise InputError(f"{path} is a model file: make a graph of it first ({way})") from None
        raise


def document_suffix(path: Path) -> str:
    """Return '.json', '.yaml' or '.yml'. Raises InputError for another suffix."""
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
    if suffix not in MOST_BYTES:
        raise InputError(f"{path}: the suffix must be .json, .yaml or .yml, with or without .gz")
    return suffix


def read_bytes(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file, at most `most`, unpacked if it ends in `.gz`. Raises InputError."""
    packed = path.suffix == ".gz"
    size = regular_size(path)
    if not packed and size > most:  # it would be read for nothing
        raise _too_large(path, most)
    try:
        expected = max(2**20, size * (MOST_UNPACKED if packed else 1))
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            # One byte more than allowed shows that there is more, without reading it all.
            raw = stream.read(min(most, expected) + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{path}: not a whole gzip file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > most:
        raise _too_large(path, most)
    if packed and len(raw) > expected:
        raise InputError(
            f"{path}: unpacks to more than {MOST_UNPACKED} times its size: unpack it yourself if you trust it"
        )
    return raw


def _too_large(path: Path, most: int) -> InputError:
    yaml = {".yaml", ".yml"} & {*path.suffixes[-2:]}
    other = "; JSON is read up to 512 MiB" if yaml else ""
    return InputError(f"{path}: larger than the {most // 2**20} MiB that are read{other}")


def _close_name(path: Path) -> str:
    """Return a question with the file's name that was meant, if one in its folder is close; empty if none."""
    with suppress(OSError), os.scandir(path.parent) as found:
        names = sorted(one.name for one in islice(found, _MOST_NAMES))
        meant: dict[str, list[str]] = {name: [name] for name in names}
        if not path.suffix:  # it may be the part of a name before its first dot
            for name in names:
                if "." in name:
                    meant.setdefault(name.partition(".")[0], []).append(name)
        same = [part for part in meant if part.endswith(path.suffix)]
        if path.name and (close := get_close_matches(path.name, same or meant, n=1, cutoff=0.8)):
            return f": is it {' or '.join(str(path.with_name(one)) for one in meant[close[0]][:_NAMED])}?"
    return ""


def regular_size(path: Path) -> int:
    """Return the size of a regular file, or of the one that a link leads to. Raises InputError.

    To be called before a file is opened: opening a named pipe waits for a writer, and a device may have no
    end.
    """
    try:
        about = path.stat()
    except FileNotFoundError:
        to = f": a link to {os.readlink(path)}, which does not exist" if path.is_symlink() else ""
        folder = "" if to or path.suffix else " or folder"
        raise InputError(f"{path}: no such file{folder}{to or _close_name(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if not S_ISREG(about.st_mode):
        what = next((what for is_one, what in _KINDS if is_one(about.st_mode)), "not a regular file")
        raise InputError(f"{path}: cannot be read: it is {what}")
    if about.st_size <= _LARGEST_POINTER:
        _refuse_pointer(path)
    return about.st_size


_POINTER, _LARGEST_POINTER = b"version https://git-lfs.github.com/spec/", 1024
"""The first bytes of the file that Git LFS leaves for a large one; its size, at most."""


def _refuse_pointer(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:  # who opens it next says why it can't be read
        if file.read(len(_POINTER)) == _POINTER:
            raise InputError(f"{path}: is a Git LFS pointer, not the file itself: git lfs pull fetches it")


_KINDS = (
    (S_ISDIR, "a folder"),
    (S_ISFIFO, "a named pipe, no regular file"),
    (S_ISSOCK, "a socket, no regular file"),
    (S_ISCHR, "a device, no regular file"),
    (S_ISBLK, "a device, no regular file"),
)


def _load_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    # json.loads would keep the last of two fields of one name, without a word.
    if len(fields) != len(pairs):
        raise ValueError(f"field {twice(name for name, _value in pairs)!r} stands twice in one object")
    return fields


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number that JSON has")


_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half a character: two together are a whole one, one alone can't be written anywhere."""


def _refuse_half_characters(document: object) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.start]
        raise ValueError(f"half a character (a lone surrogate) after {near!r}") from None
