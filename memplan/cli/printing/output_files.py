"""Output files of a command: written to the requested path, or else to another, so that no result is lost."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from ...graphs.errors import InputError
from ...graphs.folders.scratch import Scratch
from .output import print_whole

STDOUT = Path("-")
"""Standard output, as a path of -o."""

_MADE_BY = (".graph", ".schedule")
"""Endings of names that memplan gives by default; the next file's name replaces them."""


@dataclass(frozen=True)
class Destination:
    """Where a command's file goes.

    by_default: whether the user named no file. A file that is there is then kept under another name.
    """

    path: Path
    by_default: bool = False

    @property
    def printed(self) -> bool:
        """Whether the file is printed on standard output."""
        return self.path == STDOUT


def destination_of(named: Path | None, source: Path | str, ending: str, folder: Path = Path()) -> Destination:
    """Return where a file goes: to the path that the user named, else into the folder.

    source: what it is made from, a path or MODEL.py:ENTRY. Its name without suffixes begins the default name.
    ending: of the default name, like .schedule.json.

    Raises InputError if the default can't be written: before the work is done.
    """
    if named is not None:
        return Destination(named)
    file, _, entry = str(source).partition(".py:")
    stem = f"{Path(file).name}-{entry}" if entry else Path(Path(file).name.removesuffix(".gz")).stem
    for made in _MADE_BY:
        stem = stem.removesuffix(made) or stem
    path = folder / f"{stem}{ending}"
    try:
        if folder.is_dir():  # one that is still to be made has been validated as an option
            check_writable(path)
    except InputError as error:
        raise InputError(f"{error}: give -o FILE, or -o - for standard output") from None
    return Destination(path, by_default=True)


def check_spared(to: Destination, *inputs: Path | None) -> None:
    """Raise InputError if the file would replace one that it is made from."""
    if not to.printed and to.path.resolve() in {path.resolve() for path in inputs if path}:
        raise InputError(f"{to.path}: -o would write over the input of that name")


def check_writable(path: Path) -> None:
    """Raise InputError if a file can't be written at the path."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: cannot be written: it is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class Written:
    """An output file that was written.

    path: None if none was requested, if it was printed, or if none could be written.
    fault: why the requested path could not be written, None if it was.
    earlier: the new path of the file that had the default name before.
    """

    path: Path | None = None
    fault: str | None = None
    earlier: Path | None = None

    @property
    def name(self) -> str | None:
        return None if self.path is None else str(self.path)

    def row(self, label: str = "written") -> list[tuple[str, str]]:
        """Return the row that names the file for people; none if there is no file."""
        if self.path is None:
            return []
        return [(label, f"{self.path}" + (f" (the earlier one is {self.earlier})" if self.earlier else ""))]

    def tell(self) -> None:
        """Raise InputError if the file is not at the requested path. Call this after printing the result."""
        if self.fault:
            raise InputError(f"{self.fault}; it is in {self.path} instead" if self.path else self.fault)


def write_out(destination: Destination | Path | None, write: Callable[[Path], None]) -> Written:
    """Write a file to the destination, or to another folder if that fails.

    write: writes to a path; raises InputError if it can't.
    """
    if destination is None:
        return Written()
    to = Destination(destination) if isinstance(destination, Path) else destination
    path, earlier = to.path, None
    try:
        if to.printed:
            _print(write)
            return Written()
        earlier = _kept(path) if to.by_default else None
        write(path)
        return Written(path, earlier=earlier)
    except InputError as error:
        for folder in (path.parent, Path(), *map(Path, _others())):
            suffix = path.suffix if path.suffix in (".csv", ".html") else ".json"
            temporary = folder / f"memplan-{token_hex(4)}{suffix}"
            with suppress(InputError):
                write(temporary)
                return Written(temporary, str(error), earlier)
        return Written(None, str(error))


def _print(write: Callable[[Path], None]) -> None:
    """Print a document as JSON on standard output."""
    with Scratch("output") as folder:
        path = Path(folder) / "output.json"
        write(path)
        text = path.read_text(encoding="utf-8")
        # the encoding of standard output may lack a name's characters: JSON has escapes for them
        print_whole(text if text.isascii() else json.dumps(json.loads(text)) + "\n")


def _kept(path: Path) -> Path | None:
    """Rename a file that has a default name, so that writing there loses nothing; None if there is none.

    Of several earlier ones the last is kept.
    """
    earlier = path.with_suffix(f".old{path.suffix}")
    try:
        return path.replace(earlier)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be renamed to {earlier}: {error.strerror}") from None


def _others() -> Iterator[str]:
    with suppress(FileNotFoundError):  # there is none that can be written
        yield tempfile.gettempdir()
    yield os.path.expanduser("~")
