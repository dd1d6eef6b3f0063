"""Moccasin's constraint program: retention intervals in traced order, few copies of each tensor.

    paper (2)                 here                    meaning
    n, C_v                    stages, copies          operations; most runs of each
    M                         capacity                bytes, in units of the sizes' greatest common divisor
    w_v, m_v                  variant.time, size      seconds and bytes
    s_v^i                     run.start               the event of the i-th run of v
    e_v^i                     copy.end                up to where its output is held (here exclusive)
    a_v^i                     run.active              whether it takes place
    event domain, O(n²)       events (timeline.py)    a stage has a slot for each operation, then its own

    minimise Σ time · active                          or, to find a start, what exceeds the capacity
    (1) the first run of v is at the end of v's stage, a further one in v's slot of a later stage
    (2) a run that reads x has one source, a copy c of x:  c.ready < run.start < c.end
    (3) cumulative: at every event, Σ size of what is held + workspace ≤ capacity
    (4) run i + 1 comes after run i, and only if run i takes place
    (5) Σ size · (1 − late) over what crosses stage t + what t itself needs ≤ capacity

Differences from the paper. An operation may write several tensors, each held for a separate interval, and a
tensor may be the sum of several operations' contributions (copies.py). There is workspace, and an operation
may have several execution variants. (5) is redundant: what is complete before stage t, needed after it and
not held at its end is recomputed later (`late`); it links bytes to seconds, as (2) and (3) propagate little.
A start is width · stage + rank, so its domain is an interval of stages: CP-SAT is an order of magnitude
faster on these than on sets of events.

Reference: B. Bartan, H. Li, H. Teague, C. Lott, B. Dilkina, Moccasin: Efficient Tensor Rematerialization for
Neural Networks, ICML 2023, arXiv:2304.14463.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import fsum, gcd

from ortools.sat.python import cp_model

from ...stages.slots import variants_of
from .copies import Copy, Held, Makers, RunVariables, Variable
from .timeline import Timeline
from .times import whole_times

LOWER = 1.0 - 2.0**-48
"""Factor on a bound: it takes off more than units and sums of seconds are rounded by."""

Source = tuple[int, int, int]
"""Reader, number of its run, tensor."""


@dataclass(frozen=True, eq=False)
class RetentionProgram:
    """A written constraint program, with its variables.

    reads: per operation, the tensors that are not always resident.
    runs: per operation.
    copies: per tensor that is made.
    sources: for every read, per copy the literal that it is read; None: it can't be.
    unit: seconds that 1 in the objective stands for.
    fixed: seconds of the runs that are not in the objective.
    least: the objective is the excess over the capacity instead.
    """

    model: cp_model.CpModel
    timeline: Timeline
    true: Variable
    reads: dict[int, list[int]]
    runs: dict[int, list[RunVariables]]
    copies: dict[int, list[Copy]]
    sources: dict[Source, list[Variable | None]]
    unit: float
    fixed: float
    least: bool

    def value(self, objective: float) -> float:
        """Return seconds; or, if the excess is minimised, its units."""
        return objective if self.least else self.fixed + objective * self.unit

    def bound(self, objective: float) -> float:
        """Return the value of a bound, lowered by more than the rounding of the units and of this sum."""
        return self.value(objective) * (1.0 if self.least else LOWER)


def retention_program(timeline: Timeline, *, least: bool = False) -> RetentionProgram:
    """Write the constraint program.

    least: minimise the excess over the capacity instead of the time.
    """
    return _Writing(timeline, least).program()


class _Writing:
    def __init__(self, timeline: Timeline, least: bool) -> None:
        graph = timeline.graph
        self.timeline, self.model = timeline, cp_model.CpModel()
        self.held = Held(self.model, timeline.horizon)
        self.operations = range(timeline.stages)
        resident: list[bool] = graph.resident.tolist()
        self.reads = {k: [x for x in graph.input_lists[k] if not resident[x]] for k in self.operations}
        self.variants = {k: variants_of(graph, k) for k in self.operations}
        tensors = {x for k in self.operations for x in (*self.reads[k], *self.variants[k][0].writes)}
        tensors.update(timeline.results)
        bytes_of: list[int] = graph.tensors.bytes.tolist()
        workspaces = [variant.workspace for variants in self.variants.values() for variant in variants]
        self.quantum = reduce(gcd, [bytes_of[x] for x in tensors] + workspaces, 0) or 1
        self.size = {x: bytes_of[x] // self.quantum for x in tensors}
        self.capacity = timeline.capacity // self.quantum
        everything = sum(self.size.values()) + sum(workspaces) // self.quantum
        # At most everything at once lies above the capacity; a capacity below 0 adds to that.
        self.excess = self.model.new_int_var(0, everything - min(self.capacity, 0), "") if least else None
        self.limit = self.capacity if self.excess is None else self.capacity + self.excess
        self.sources: dict[Source, list[Variable | None]] = {}
        self._lates: dict[tuple[int, int], Variable | None] = {}

    def program(self) -> RetentionProgram:
        self.runs = {k: self._runs_of(k) for k in self.operations}
        self.copies = {x: self._copies_of(x) for x in self.size}
        for k in self.operations:
            for number, run in enumerate(self.runs[k]):
                for x in self.reads[k]:
                    self.sources[k, number, x] = self._read(run, self.copies[x])
        for x in self.timeline.results:
            self._keep(self.copies[x])
        self.model.add_cumulative(self.held.intervals, self.held.sizes, self.limit)  # (3)
        for stage in self.operations:
            self._join_bytes_to_runs(stage)
        unit, fixed = self._minimise()
        return RetentionProgram(
            model=self.model,
            timeline=self.timeline,
            true=self.held.true,
            reads=self.reads,
            runs=self.runs,
            copies=self.copies,
            sources=self.sources,
            unit=unit,
            fixed=fixed,
            least=self.excess is not None,
        )

    # ── variables ───────────────────────────────────────────────────────────────────────────────

    def _runs_of(self, k: int) -> list[RunVariables]:
        timeline, model = self.timeline, self.model
        event, last = timeline.stage_end(k), timeline.last.get(k, k)
        runs = [
            RunVariables(
                active=self.held.true,
                stage=None,
                start=event,
                earliest=event,
                latest=event,
                variants=self._variants(k, self.held.true),
            )
        ]  # (1)
        before: tuple[Variable, Variable] | None = None
        # Run i comes at stage k + i at the earliest, as each run has a stage of its own.
        for earliest in range(k + 1, min(last, k + timeline.copies - 1) + 1):
            active, stage = model.new_bool_var(""), model.new_int_var(earliest, last, "")
            run = RunVariables(
                active=active,
                stage=stage,
                start=stage * timeline.width + timeline.ranks[k],
                earliest=timeline.slot(earliest, k),
                latest=timeline.slot(last, k),
                variants=self._variants(k, active),
            )
            if before is not None:  # (4)
                model.add_implication(active, before[0])
                model.add(stage > before[1]).only_enforce_if(active)
            before = active, stage
            runs.append(run)
        for run in runs:
            for variant, literal in run.variants:
                # Workspace is held for the event of the run alone.
                self.held.once(run.start, literal, variant.workspace // self.quantum)
        return runs

    def _variants(self, k: int, active: Variable):
        variants = self.variants[k]
        if len(variants) == 1:
            return [(variants[0], active)]
        literals = [self.model.new_bool_var("") for _variant in variants]
        self.model.add_exactly_one([*literals, active.negated()])
        return list(zip(variants, literals, strict=True))

    def _made(self, run: RunVariables, x: int) -> Variable:
        """Return the literal that the run writes x."""
        literals = [literal for variant, literal in run.variants if x in variant.writes]
        if len(literals) == len(run.variants):
            return run.active
        made = self.model.new_bool_var("")
        self.model.add_exactly_one([*literals, made.negated()])
        return made

    def _copies_of(self, x: int) -> list[Copy]:
        graph = self.timeline.graph
        producers: list[int] = graph.producers[x].tolist()
        runs = {p: [(run, self._made(run, x)) for run in self.runs[p]] for p in producers}
        readers: list[int] = graph.consumers[x].tolist() + graph.mutators[x].tolist()
        until = max((self.runs[k][-1].latest + 1 for k in readers), default=0)
        if x in self.timeline.results:
            until = self.timeline.horizon
        # Nobody reads it: it takes memory while it is made, and is deleted.
        if not until:
            for made in runs.values():
                for run, literal in made:
                    self.held.once(run.start, literal, self.size[x])
            return []
        until = max(until, *(run.latest + 1 for made in runs.values() for run, _literal in made), 1)
        return self.held.copies(Makers(self.size[x], until, runs))

    # ── constraints ─────────────────────────────────────────────────────────────────────────────

    def _read(self, run: RunVariables, copies: Sequence[Copy]) -> list[Variable | None]:
        """Write (2)."""
        model = self.model
        possible = [copy.earliest < run.latest for copy in copies]
        literals: list[Variable | None] = []
        for copy, may in zip(copies, possible, strict=True):
            # With one possible source the run itself is the literal: a Boolean less.
            literals.append((run.active if sum(possible) == 1 else model.new_bool_var("")) if may else None)
            if (source := literals[-1]) is not None:
                # Of each producer some run must be in the copy: else the sum is incomplete.
                for parts in copy.has.values():
                    model.add_bool_or([*parts, source.negated()])
                model.add_implication(source, copy.present)
                model.add(copy.ready < run.start).only_enforce_if(source)
                model.add(copy.end > run.start).only_enforce_if(source)
        model.add_exactly_one([*(x for x in literals if x is not None), run.active.negated()])
        return literals

    def _keep(self, copies: Sequence[Copy]) -> None:
        """Require a complete copy after the last stage."""
        last = [self.model.new_bool_var("") for _copy in copies]
        self.model.add_exactly_one(last)
        for copy, literal in zip(copies, last, strict=True):
            self.model.add_implication(literal, copy.present)
            self.model.add(copy.end == self.timeline.horizon).only_enforce_if(literal)
            for parts in copy.has.values():
                self.model.add_bool_or([*parts, literal.negated()])

    def _join_bytes_to_runs(self, stage: int) -> None:
        """Write (5)."""
        variants, reads = self.variants[stage], self.reads[stage]
        # What the stage itself needs: the least of its variants, and all that it reads.
        total = min(
            variant.workspace // self.quantum + sum(self.size[x] for x in variant.writes)
            for variant in variants
        )
        total += sum(self.size[x] for x in reads)
        terms: list[cp_model.LinearExprT] = []
        for x in self._crossing(stage):
            if x not in reads:
                total += self.size[x]
                if (late := self._late(x, stage)) is not None:
                    terms.append(self.size[x] * late)
        # Else the row says nothing.
        if self.excess is not None or total > self.capacity:
            self.model.add(total - sum(terms) <= self.limit)

    def _crossing(self, stage: int) -> list[int]:
        """Return tensors that would be complete before the stage if all were held, and are needed later."""
        return [x for x, (made, last) in self._spans.items() if made < stage < last and self.size[x]]

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """Stages, per tensor, in which its last contribution is made, and the last that reads it."""
        last = {x: k for k in self.operations for x in self.reads[k]}
        last |= dict.fromkeys(self.timeline.results, self.timeline.stages)
        return {x: (int(self.timeline.graph.producers[x].max()), until) for x, until in last.items()}

    def _late(self, x: int, stage: int) -> Variable | None:
        """Return the literal that the tensor's first producer reruns after the stage; None if it can't."""
        producer = int(self.timeline.graph.producers[x][0])
        if (producer, stage) not in self._lates:
            self._lates[producer, stage] = self._runs_after(producer, stage)
        return self._lates[producer, stage]

    def _runs_after(self, producer: int, stage: int) -> Variable | None:
        end = self.timeline.stage_end(stage)
        after: list[Variable] = []
        for run in self.runs[producer]:
            if run.stage is None or run.latest < end:
                continue
            # It is later in any case: its own literal will do.
            if run.earliest > end:
                after.append(run.active)
                continue
            late = self.model.new_bool_var("")
            self.model.add_implication(late, run.active)
            # One direction only: `late` may be false although a run is later, which never helps.
            self.model.add(run.stage > stage).only_enforce_if(late)
            after.append(late)
        if len(after) < 2:
            return after[0] if after else None
        late = self.model.new_bool_var("")
        self.model.add_bool_or([*after, late.negated()])
        return late

    def _minimise(self) -> tuple[float, float]:
        """Minimise the objective; return its unit and the fixed seconds."""
        choices = [choice for k in self.operations for run in self.runs[k] for choice in run.variants]
        times, unit = whole_times([variant.time for variant, _literal in choices])
        open_ = [
            (literal, time)
            for (_variant, literal), time in zip(choices, times, strict=True)
            if literal is not self.held.true
        ]
        self.model.minimize(
            sum(literal * time for literal, time in open_) if self.excess is None else self.excess
        )
        return unit, fsum(variant.time for variant, literal in choices if literal is self.held.true)
