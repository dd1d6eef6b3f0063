"""Copies of one tensor in Moccasin's program: each is held for one interval, from when it is made to its end.

A tensor with one producer has a copy for each of that operation's runs. One with several has allocations,
each of which collects one contribution of every producer; they do not overlap. A run that contributes to none
(its share is in there already, or will not be needed) takes the size for its own event only: it is separate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from ...stages.slots import DeviceVariant

Expression = cp_model.LinearExprT
Variable = cp_model.IntVar


@dataclass(frozen=True, eq=False)
class RunVariables:
    """A run that may take place.

    stage: the variable that determines `start`, its event; None if that is fixed.
    earliest, latest: bounds of `start`.
    variants: execution variants, each with its literal.
    """

    active: Variable
    stage: Variable | None
    start: Expression
    earliest: int
    latest: int
    variants: Sequence[tuple[DeviceVariant, Variable]]


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy, held in the events from `start` up to, not including, `end`; readable after `ready`.

    earliest: of `ready`.
    has: producer -> literals of which one must be true for its contribution to be in.
    joins: (producer, number of its run) -> the literal that this run contributes.
    """

    present: Variable
    start: Expression
    ready: Expression
    end: Variable
    length: Variable
    interval: cp_model.IntervalVar
    earliest: int
    has: Mapping[int, Sequence[Variable]]
    joins: Mapping[tuple[int, int], Variable]


@dataclass(frozen=True, eq=False)
class Makers:
    """The runs that make one tensor: per producer, each run with the literal that it makes the tensor.

    until: the latest event at which a copy can end.
    """

    size: int
    until: int
    runs: Mapping[int, Sequence[tuple[RunVariables, Variable]]]


class Held:
    """The program's intervals: what is held when."""

    def __init__(self, model: cp_model.CpModel, horizon: int) -> None:
        self.model, self.horizon = model, horizon
        self.true: Variable = model.new_constant(1)
        self.intervals: list[cp_model.IntervalVar] = []
        self.sizes: list[int] = []

    def once(self, start: Expression, present: Variable, size: int) -> None:
        """Add bytes for one event."""
        if size:
            self.intervals.append(self.model.new_optional_fixed_size_interval_var(start, 1, present, ""))
            self.sizes.append(size)

    def copies(self, producers: Makers) -> list[Copy]:
        return self._alone(producers) if len(producers.runs) == 1 else self._shared(producers)

    def _alone(self, producers: Makers) -> list[Copy]:
        ((producer, runs),) = producers.runs.items()
        return [
            self._copy(
                producers,
                made,
                earliest=run.earliest,
                start=run.start,
                ready=run.start,
                has={producer: [made]},
                joins={(producer, number): made},
            )
            for number, (run, made) in enumerate(runs)
        ]

    def _shared(self, producers: Makers) -> list[Copy]:
        model = self.model
        alone = {
            (p, i): [made.negated()]
            for p, runs in producers.runs.items()
            for i, (_run, made) in enumerate(runs)
        }
        copies: list[Copy] = []
        earliest = max(runs[0][0].earliest for runs in producers.runs.values())
        for _ in range(max(map(len, producers.runs.values()))):
            present = model.new_bool_var("")
            start, ready = (model.new_int_var(0, self.horizon - 1, "") for _ in range(2))
            has: dict[int, list[Variable]] = {producer: [] for producer in producers.runs}
            joins: dict[tuple[int, int], Variable] = {}
            for producer, runs in producers.runs.items():
                for i in range(len(runs)):
                    joins[producer, i] = join = model.new_bool_var("")
                    has[producer].append(join)
                    alone[producer, i].append(join)
            copy = self._copy(
                producers, present, earliest=earliest, start=start, ready=ready, has=has, joins=joins
            )
            for (producer, i), join in joins.items():
                run, made = producers.runs[producer][i]
                model.add_implication(join, made)
                model.add_implication(join, present)
                model.add(start <= run.start).only_enforce_if(join)
                model.add(ready >= run.start).only_enforce_if(join)
                model.add(copy.end > run.start).only_enforce_if(join)
                for earlier, had_made in producers.runs[producer][:i]:  # would have joined
                    model.add(earlier.start < start).only_enforce_if(join, had_made)
            for joined in has.values():
                model.add_at_most_one(joined)
            if copies:
                model.add_implication(present, copies[-1].present)
                model.add(start >= copies[-1].end).only_enforce_if(present)
            copies.append(copy)
        for (producer, i), joined in alone.items():
            run, _made = producers.runs[producer][i]
            stands_alone = model.new_bool_var("")
            model.add_exactly_one([*joined, stands_alone])
            self.once(run.start, stands_alone, producers.size)
        return copies

    def _copy(
        self,
        producers: Makers,
        present: Variable,
        earliest: int,
        start: Expression,
        ready: Expression,
        has: Mapping[int, Sequence[Variable]],
        joins: Mapping[tuple[int, int], Variable],
    ) -> Copy:
        length = self.model.new_int_var(1, self.horizon, "")
        end = self.model.new_int_var(1, producers.until, "")
        interval = self.model.new_optional_interval_var(start, length, end, present, "")
        if producers.size:
            self.intervals.append(interval)
            self.sizes.append(producers.size)
        return Copy(
            present=present,
            start=start,
            ready=ready,
            end=end,
            length=length,
            interval=interval,
            earliest=earliest,
            has=has,
            joins=joins,
        )
