"""The commands to try next: the one that was typed with another budget, and those that use a schedule."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from ..planner.bounds import minimum_memory
from .printing.output import Row
from .replay import Held

_OPTION = "--budget"
_STEP = 10
"""Percent of the baseline's peak between a budget and the next."""
_SLOW = 0.01
"""Slowdown above which more memory is worth a try; below it less is."""
_PROGRAMS = ("plan", "memplan")


def command_within(budget: str, words: Sequence[str] | None = None) -> str | None:
    """Return the command with this budget, as `command_with` does."""
    return command_with(_OPTION, budget, words)


def command_with(option: str, value: str, words: Sequence[str] | None = None) -> str | None:
    """Return the command with another value of an option; None if memplan was not called as a command.

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
        elif word == option or word.startswith(f"{option}="):
            # Of an option given twice the last one holds.
            place, skipped = len(kept), word == option
        else:
            kept.append(word)
    place = len(kept) if place is None else place
    return shlex.join(["plan", *kept[:place], option, value, *kept[place:]])


def next_rows(held: Held, schedule: Path, overhead: float) -> Iterator[Row]:
    """Yield the commands that run a schedule, train by it, and try the next budget.

    overhead: the schedule's slowdown. Of an estimated graph the schedule runs nowhere, and of an imported one
    there is no model.
    """
    source = held.graph.source or {}
    model, entry = source.get("model"), source.get("entry", "build")
    if isinstance(model, str) and "estimate" not in source:
        name = model if entry == "build" else f"{model}:{entry}"
        yield "compare", shlex.join(["plan", "run", str(schedule), "--model", name])
        if source.get("optimizer"):
            train = ["plan", "train", str(schedule), "--model", name, "--steps", "1000", "--checkpoint"]
            yield "train", f"{shlex.join(train)} FOLDER"
    if (percent := _next_percent(held, overhead)) is not None:
        graph = held.graph_path
        to = schedule.with_name(f"{graph.name.partition('.')[0]}-{percent}.schedule.json")
        words = ["plan", "solve", str(graph), "--budget", f"{percent}%", "-o", str(to)]
        yield ("more memory" if overhead > _SLOW else "less memory"), shlex.join(words)


def _next_percent(held: Held, overhead: float) -> int | None:
    """Return the next budget to try in percent of the baseline's peak, None if there is none."""
    peak = held.baseline_figures.peak
    if not held.budget or not peak:
        return None
    now, whole = 100 * held.budget / peak, round(100 * held.budget / peak)
    if abs(whole * peak - 100 * held.budget) < 100:  # 40% of a peak is rounded down to bytes, to 39.99999%
        now = whole
    if overhead > _SLOW:
        return min(100, (int(now) // _STEP + 1) * _STEP) if now < 100 else None
    below = (ceil(min(now, 100) / _STEP) - 1) * _STEP
    return below if below * peak >= 100 * minimum_memory(held.graph, held.machine) else None
