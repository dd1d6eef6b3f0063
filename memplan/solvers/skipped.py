"""Candidate schedules that break a rule: they are skipped, and the result reports them.

Such a schedule is a bug of the solver that made it. It must cost neither the solver's other candidates nor
the user's result; and it must not be hidden: a note in the result names the solver and the rule, and the
tests and the fuzzer count each such note as a fault.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType

from ..planner.errors import InvalidScheduleError

INTERNAL_ERROR = "internal error: "
"""The start of each note about a bug of a solver."""

_collected: ContextVar[list[str] | None] = ContextVar("skipped", default=None)
"""The list is shared by the threads that run in a copy of the context."""


@contextmanager
def collecting() -> Generator[list[str]]:
    """Collect a note for each solver and rule; those around this one get them too."""
    outer, notes = _collected.get(), list[str]()
    token = _collected.set(notes)
    try:
        yield notes
    finally:
        _collected.reset(token)
        if outer is not None:
            # In `finally`: notes of a solve that was refused count too.
            outer += [note for note in notes if note not in outer]


class skipping(AbstractContextManager[None]):  # noqa: N801 (like contextlib.suppress)
    """Leave the block if a schedule breaks a rule. Raises InvalidScheduleError if nobody collects."""

    def __init__(self, solver: str) -> None:
        self.solver = solver

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, InvalidScheduleError) or _collected.get() is None:
            return False
        report_skipped(self.solver, error)
        return True


def report_skipped(solver: str, error: InvalidScheduleError) -> None:
    """Note it, once for each solver and rule."""
    start = f"{INTERNAL_ERROR}{solver} made a schedule that breaks the rule {error.rule}; it was skipped"
    if not any(note.startswith(start) for note in collected()):
        add_note(f"{start}: {error}")


def collected() -> list[str]:
    """Return the notes so far."""
    return _collected.get() or []


def add_note(note: str) -> None:
    """Add a note to those that are collected now, if any."""
    notes = _collected.get()
    if notes is not None and note not in notes:
        notes.append(note)
