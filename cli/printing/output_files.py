"""Output files of a command: written to the requested path, or else to another, so that no result is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir

from ...graphs.errors import InputError
from .output import Output


@dataclass(frozen=True)
class Written:
    """An output file that was written.

    path: None if none was requested, or if none could be written.
    fault: why the requested path could not be written, None if it was.
    """

    path: Path | None = None
    fault: str | None = None

    @property
    def name(self) -> str | None:
        return None if self.path is None else str(self.path)

    def tell(self, output: Output | None = None, example: str = "") -> None:
        """Raise InputError if the file is not at the requested path. Call this after printing the result.

        output, example: print a note, with this name of a file, if none was requested.
        """
        if output is not None and self.path is None and self.fault is None:
            output.note(f"not saved: give -o {example}")
        if self.fault:
            raise InputError(f"{self.fault}; it is in {self.path} instead" if self.path else self.fault)


def write_out(destination: Path | None, write: Callable[[Path], None]) -> Written:
    """Write a file to the destination, or to another folder if that fails.

    write: writes to a path; raises InputError if it can't.
    """
    if destination is None:
        return Written()
    try:
        write(destination)
        return Written(destination)
    except InputError as error:
        for folder in (destination.parent, Path(), *map(Path, _others())):
            suffix = destination.suffix if destination.suffix == ".csv" else ".json"
            temporary = folder / f"memplan-{token_hex(4)}{suffix}"
            with suppress(InputError):
                write(temporary)
                return Written(temporary, str(error))
        return Written(None, str(error))


def _others() -> Iterator[str]:
    with suppress(FileNotFoundError):  # there is none that can be written
        yield gettempdir()
    yield os.path.expanduser("~")
