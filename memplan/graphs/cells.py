"""Text as a cell of a CSV file: names from a graph file may hold anything."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@")
"""Characters that a spreadsheet takes for the beginning of a formula."""


def cell_text(text: str) -> str:
    """Return text that is safe in a terminal and a spreadsheet.

    Control characters are escaped (ESC as \\x1b), so that no terminal acts on them; an apostrophe comes
    before what a spreadsheet would compute.
    """
    printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return f"'{printable}" if printable.startswith(_FORMULA) else printable
