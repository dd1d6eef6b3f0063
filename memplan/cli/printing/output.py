"""Output of a command: its result on standard output, notes and progress on standard error."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from ...graphs.errors import InputError
from ..streams import CONTROLS, give_up_output, say
from .heartbeat import heartbeat
from .live import Live, Phase

_SIMPLE = str.maketrans({"×": "x", "µ": "u", "…": "...", "≤": "<=", "≥": ">="})
"""Replacements on a terminal that has only ASCII; names in files are escaped by the stream."""

_NARROWEST = 20

Row = tuple[str, str]
"""A label and its text."""


@dataclass
class Answer:
    """The one JSON object of a command.

    command: its name, None if there is no such command. wanted: whether --json is given.
    details: of an error that will end the command. printed: whether the object has been printed.
    """

    command: str | None = None
    wanted: bool = False
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    printed: bool = False

    def print(self, document: Mapping[str, Any]) -> None:
        """Print the object. Raises InputError."""
        self.printed = True
        # NaN and Infinity are no JSON, though Python would write them.
        print_whole(json.dumps({"command": self.command, **document}, allow_nan=False) + "\n")

    def end(self, code: int, line: str) -> None:
        """Print what ended the command, if an object is wanted and none has been printed.

        code: the exit code. line: the error's.
        """
        if self.wanted and not self.printed:
            with suppress(InputError):  # nobody reads it
                self.print({"error": line, "exit_code": code, **self.details})


@dataclass(frozen=True)
class Output:
    """The output of one command.

    as_json: print the result as one JSON object.
    quiet: print no notes and no progress.
    aside: print the result on standard error, unless quiet: standard output is for the command's file.
    answer: the JSON object. phase: of the command's work. noted: the notes so far.
    """

    as_json: bool = False
    quiet: bool = False
    aside: bool = False
    answer: Answer = field(default_factory=Answer)
    phase: Phase = field(default_factory=Phase)
    noted: set[str] = field(default_factory=set[str])

    def result(self, document: Mapping[str, Any], lines: Iterable[Text]) -> None:
        """Print the result: `document` with --json, else `lines`."""
        if self.as_json:
            self.document(document)
        else:
            self.lines(lines)

    def document(self, document: Mapping[str, Any]) -> None:
        """Print `document` with --json, else nothing."""
        if self.as_json:
            self.answer.print(document)

    def refusal(self, details: Mapping[str, Any]) -> None:
        """Add details to the JSON object of the error that will end the command."""
        self.answer.details = details

    def lines(self, lines: Iterable[Text]) -> None:
        """Print lines for people."""
        if self.aside and self.quiet:
            return
        there, written = _console(stderr=self.aside), io.StringIO()
        console = _console(file=written, force_terminal=there.is_terminal, width=there.width)
        for line in lines:
            line.plain = line.plain.translate(CONTROLS)
            console.print(line, soft_wrap=True)
        text = written.getvalue()
        text = text if self.blocks else text.translate(_SIMPLE)
        if self.aside:
            with suppress(OSError):  # nobody reads it
                sys.stderr.write(text)
        else:
            print_whole(text)

    def note(self, line: str) -> None:
        """Print a line for the user on standard error, unless quiet: once, for all that it holds of."""
        if not self.quiet and line not in self.noted:
            self.noted.add(line)
            say(line)

    @contextmanager
    def live(self, line: str, limit: float | None = None) -> Generator[Live]:
        """Show what is being done while the block runs.

        On a terminal it is one line, which is removed afterwards; else a line every ten seconds.
        limit: seconds after which it ends at the latest.
        """
        live = Live(line, self.phase, limit)
        if self.quiet:
            yield live
        elif self.on_terminal:
            with _console(stderr=True).status(live):
                yield live
        else:
            with heartbeat(live):
                yield live

    @contextmanager
    def status(self, line: str) -> Generator[Callable[[str], None]]:
        """Show a line as `live` does; yields what replaces it."""
        with self.live(line) as live:
            yield live.report

    @contextmanager
    def progress(self, line: str) -> Generator[Callable[[int, int, str], None]]:
        """Show a line as `live` does; yields what takes the number done, the total, and the last name."""
        with self.live(line) as live:
            yield live.count

    @contextmanager
    def logged(
        self, line: str, state: object, limit: float | None = None
    ) -> Generator[tuple[Callable[[str], None], Callable[[str], None]]]:
        """Show a line as `live` does; yields what replaces it, and what writes permanent lines above it.

        state: stays in the line, as `str` gives it at each moment. Without a terminal the line has it all,
        and none is written above.
        """
        with self.live(line, limit) as live:
            live.announce(state)
            shown = self.on_terminal and not self.quiet
            yield live.report, _write_above if shown else lambda _line: None

    @property
    def on_terminal(self) -> bool:
        """Whether notes and progress are shown as they come."""
        return _console(stderr=True).is_terminal

    @property
    def width(self) -> int:
        """Columns to fill: the terminal's, COLUMNS, or 80."""
        return _console().width

    @property
    def blocks(self) -> bool:
        """Whether block characters can be shown."""
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        return encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _write_above(line: str) -> None:
    """Print a line above the one that is shown live."""
    _console(stderr=True).print(Text(line.translate(CONTROLS)), soft_wrap=True)


def labelled(rows: Iterable[Row]) -> Iterator[Text]:
    """Yield lines `label  text`, with the labels in one column."""
    rows = list(rows)
    width = max((len(label) for label, _what in rows), default=0)
    for label, what in rows:
        yield Text.assemble((label.ljust(width), "bold"), "  ", what)


def table(
    heads: list[str], rows: Iterable[list[str]], *, indent: int = 0, widths: Sequence[int] = ()
) -> Iterator[Text]:
    """Yield the lines of a table: the last column, of names, to the left, the others to the right.

    widths: characters of the columns at least, for a table whose other rows are printed apart.
    """
    rows = [heads, *rows] if heads else list(rows)
    found = (max(map(len, column)) for column in zip(*rows, strict=True))
    widths = [max(pair) for pair in zip_longest(found, widths, fillvalue=0)][:-1]
    for position, row in enumerate(rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        style = "bold" if heads and not position else ""
        yield Text(" " * indent + "  ".join([*cells, row[-1]]), style=style)


def _console(**options: Any) -> Console:
    console = Console(highlight=False, markup=False, emoji=False, **options)
    console.width = max(_NARROWEST, console.width)
    return console


def print_whole(text: str) -> None:
    """Print text on standard output and flush.

    A reader that has gone (`| head`) is not an error: later output is discarded.
    """
    stream: IO[str] | None = sys.stdout  # None: the parent process closed it
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        give_up_output()
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output cannot be written: {error.strerror}") from None
