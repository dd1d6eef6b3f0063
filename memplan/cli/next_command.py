"""The command to try next, as it was typed, with another budget."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

_OPTION = "--budget"
_PROGRAMS = ("plan", "memplan")


def command_within(budget: str, words: Sequence[str] | None = None) -> str | None:
    """Return the command with this budget; None if memplan was not called as a command.

    words: the command's, by default those of this process.
    """
    program, *rest = sys.argv if words is None else words
    if Path(program).name not in _PROGRAMS:
        return None
    kept = list[str]()
    place = None
    skipped = False
    for word in rest:
        if skipped:
            skipped = False
        elif word == _OPTION or word.startswith(f"{_OPTION}="):
            place, skipped = len(kept), word == _OPTION
        else:
            kept.append(word)
    place = len(kept) if place is None else place
    return shlex.join(["plan", *kept[:place], _OPTION, budget, *kept[place:]])
