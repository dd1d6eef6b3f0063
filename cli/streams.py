"""Standard output and standard error, where neither names in files nor who reads them can do harm."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20)},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F)], 0xFFFD),
    **dict.fromkeys(range(0x2066, 0x206A), 0xFFFD),
}
"""Names in files may hold what moves a terminal's cursor, sets its title or turns its text around: of each a
picture is shown."""

_LONGEST_LINE = 1500


def say(line: str) -> None:
    """One line on standard error, of a length that can be read."""
    line = " ".join(line.split()).translate(CONTROLS)
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    with suppress(OSError):  # nobody reads it
        click.echo(f"plan: {line}", err=True)


def give_up_output() -> None:
    """What standard output still holds goes nowhere, so that it is no fault again when Python ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
