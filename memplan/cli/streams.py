"""Standard output and standard error, protected from control characters in names and from closed readers."""

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
"""Visible replacements for control characters.

Names in files may hold characters that move a terminal's cursor, set its title or reverse its text.
"""

_LONGEST_LINE = 1500


def say(line: str) -> None:
    """Print one line on standard error, shortened to a readable length."""
    line = " ".join(line.split()).translate(CONTROLS)
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    with suppress(OSError):  # nobody reads it
        click.echo(f"plan: {line}", err=True)


def give_up_output() -> None:
    """Discard what standard output still buffers.

    Otherwise flushing it when Python ends would fail once more.
    """
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
