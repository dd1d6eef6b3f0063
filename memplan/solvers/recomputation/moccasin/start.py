"""Conversion of a sequence of runs to the values of Moccasin's variables, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from ....planner.schedule.sequence import Run
from .copies import Copy, Variable
from .model import RetentionProgram

Numbered = tuple[int, int]
"""An operation and the number of its run."""


def sequence_of(program: RetentionProgram, value: Callable[[Variable], int]) -> list[Run]:
    """Return the runs of a solution, in order."""
    timeline = program.timeline
    placed: list[tuple[int, Run]] = []
    for operation, runs in program.runs.items():
        for run in runs:
            if value(run.active):
                event = run.earliest if run.stage is None else timeline.slot(value(run.stage), operation)
                mode = next(variant.mode for variant, literal in run.variants if value(literal))
                placed.append((event, (operation, mode)))
    return [run for _event, run in sorted(placed)]


def hint(program: RetentionProgram, sequence: Sequence[Run]) -> bool:
    """Start from the sequence; return False if it is not in these stages, or an operation runs too often."""
    events = program.timeline.events(sequence)
    if events is None:
        return False
    values = _Values(program)
    count = dict.fromkeys(program.runs, 0)
    for event, (operation, mode) in zip(events, sequence, strict=True):
        if count[operation] == len(program.runs[operation]):
            return False
        values.run((operation, count[operation]), event, mode)
        count[operation] += 1
    for x in program.copies:
        values.hold(x)
    for variable, value in values.of.values():
        program.model.add_hint(variable, value)
    return True


@dataclass(frozen=True)
class _Touch:
    """A run that makes the tensor, or reads it."""

    event: int
    run: Numbered
    makes: bool


@dataclass
class _Stretch:
    """An interval in which a tensor is held, up to, not including, `end`.

    producers: producer -> the event and the run.
    """

    end: int
    producers: dict[int, tuple[int, Numbered]] = field(default_factory=dict[int, tuple[int, Numbered]])
    readers: list[Numbered] = field(default_factory=list[Numbered])


def _stretches(
    touches: Sequence[_Touch], producers: set[int], at_the_end: set[int], horizon: int
) -> list[_Stretch]:
    """Return the intervals in which tensors are held, the last first.

    This is a backward scan, as in planner/schedule/sequence.py.
    """
    found = [_Stretch(horizon)] if at_the_end else []
    need = set(at_the_end)
    for touch in reversed(touches):
        if not touch.makes:
            # The later interval has all its contributions: this read is the last of an earlier one.
            if not need:
                found.append(_Stretch(touch.event + 1))
            # A reader needs every contribution, even one that is added to after it.
            need = set(producers)
            found[-1].readers.append(touch.run)
        elif touch.run[0] in need:
            need.discard(touch.run[0])
            found[-1].producers[touch.run[0]] = touch.event, touch.run
    return found


class _Values:
    """Values of the program's variables.

    of: a variable's index -> the variable and its value.
    """

    def __init__(self, program: RetentionProgram) -> None:
        self.program = program
        self.of: dict[int, tuple[Variable, int]] = {}
        self.touches: dict[int, list[_Touch]] = {x: [] for x in program.copies}
        for runs in program.runs.values():
            for run in runs:
                if run.stage is not None:
                    self._set(run.active, 0)
                    self._set(run.stage, run.earliest // program.timeline.width)
                for _variant, literal in run.variants:
                    self._set(literal, 0)
        for sources in program.sources.values():
            for literal in sources:
                if literal is not None:
                    self._set(literal, 0)

    def _set(self, variable: Variable, value: int) -> None:
        # A constant literal has no value to hint.
        if variable.index != self.program.true.index:
            self.of[variable.index] = variable, value

    def run(self, run: Numbered, event: int, mode: int) -> None:
        """Set the values of a run that takes place at the event."""
        operation, number = run
        variables = self.program.runs[operation][number]
        self._set(variables.active, 1)
        if variables.stage is not None:
            self._set(variables.stage, event // self.program.timeline.width)
        for x in self.program.reads[operation]:
            self.touches[x].append(_Touch(event, run, makes=False))
        for variant, literal in variables.variants:
            self._set(literal, int(variant.mode == mode))
            for x in variant.writes if variant.mode == mode else ():
                self.touches[x].append(_Touch(event, run, makes=True))

    def hold(self, x: int) -> None:
        """Set the copies of a tensor, and which of them is read when."""
        timeline, copies = self.program.timeline, self.program.copies[x]
        made = {touch.run: touch.event for touch in self.touches[x] if touch.makes}
        producers = set[int](timeline.graph.producers[x].tolist())
        # A result is read, so to say, at the horizon.
        at_the_end = producers if x in timeline.results else set[int]()
        held = _stretches(self.touches[x], producers, at_the_end, timeline.horizon)[::-1]
        for copy in copies:
            self._set(copy.present, 0)
            event = next((made[run] for run in copy.joins if run in made), 0) if len(producers) == 1 else 0
            self._hold(copy, event, event, event + 1)
            for run, literal in copy.joins.items():
                self._set(
                    literal, int(len(producers) == 1 and run in made)
                )  # `present` too, of a single producer's
        for place, stretch in enumerate(held):
            # With one producer, copy i belongs to its run i; with several, copies are numbered in time.
            if len(producers) == 1 and stretch.producers:
                ((_event, run),) = stretch.producers.values()
                place = next(i for i, copy in enumerate(copies) if run in copy.joins)
            if place < len(copies):
                self._fill(copies[place], stretch)
            for operation, number in stretch.readers:
                sources = self.program.sources[operation, number, x]
                for i, literal in enumerate(sources):
                    if literal is not None:
                        self._set(literal, int(i == place))

    def _fill(self, copy: Copy, stretch: _Stretch) -> None:
        makings = [event for event, _run in stretch.producers.values()]
        initial = len(makings) < len(copy.has)
        self._set(copy.present, 1)
        self._hold(copy, 0 if initial else min(makings), max(makings, default=0), stretch.end)
        for _event, run in stretch.producers.values():
            self._set(copy.joins[run], 1)

    def _hold(self, copy: Copy, start: int, ready: int, end: int) -> None:
        for variable, value in (
            (copy.start, start),
            (copy.ready, ready),
            (copy.end, end),
            (copy.length, end - start),
        ):
            # The others are expressions or constants, which follow.
            if isinstance(variable, cp_model.IntVar):
                self._set(variable, value)
