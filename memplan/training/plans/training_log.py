"""The log of a step's planning and training: seconds of its set-up, iterations, notes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from ...devices.device.device import Stamp
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ...graphs.units import duration
from ...planner.device_memory import DeviceMemory
from ...planner.schedule.file import LoopStatement
from ...planner.simulator.simulate import Figures, simulate
from ...steps.execute import IterationResult, PlannedStep
from ...torch_support.unsupported import warn_user
from ..progress import PlanningLine, Progress, ProgressEvent
from .plan_cache import Plan, save
from .report import PlanReport, Prediction, Report

_log = logging.getLogger(__name__)


_KEPT = 100
"""Number of the last iterations whose times are kept."""


WARM_UP = 10
"""Iterations that are timed before a time counts: kernels, caches and allocators warm up meanwhile."""


ENOUGH = 20
"""Iterations measured before their median is compared with the plan."""


DRIFT = 0.1
"""Relative difference from the plan above which a drift is reported."""


OFTEN = 0.1
"""Share of iterations that are rolled back above which early updates hardly pay."""


@dataclass
class Record:
    """Log of one plan.

    setup: seconds by phase.
    rolled_back: number of its iterations that ran twice, see updates/early.py.
    peak: bytes of an update's largest plan, if it has several batches.
    slower: measured time relative to the figures', once iterations were timed.
    pending: stamps of iterations that the device may not have ended yet.
    stated: the predicted peak of the whole loop, and what it was computed for.
    notes: how good it and its times are, and what became of the plan when they drifted.
    """

    plan: Plan
    machine: Machine | None
    figures: Figures
    setup: dict[str, float]
    peak: int
    slower: float = 1.0
    compared_before: bool = False
    iterations: int = 0
    rolled_back: int = 0
    first: bool = True
    notes: list[str] = field(default_factory=list[str])
    seconds: deque[float] = field(default_factory=lambda: deque[float](maxlen=_KEPT))
    pending: deque[tuple[Stamp, Stamp]] = field(default_factory=deque[tuple[Stamp, Stamp]])
    stated: tuple[object, DeviceMemory] | None = None

    def time(self) -> float | None:
        """Return the median seconds per iteration, of those that the device has ended."""
        # Stamps end in order, so the first unfinished one ends the loop: nothing waits for the device.
        while self.pending and self.pending[0][1].query():
            begun, ended = self.pending.popleft()
            # Milliseconds, as CUDA's events have them.
            self.seconds.append(begun.elapsed_time(ended) / 1000)
        return median(self.seconds) if self.seconds else None

    def device(self, loop: LoopAccount) -> DeviceMemory:
        """Return the predicted peak of the whole loop. Each iteration reports it: it is computed once."""
        # By identity: a loop whose memory has changed has another object.
        if self.stated is None or self.stated[0] is not loop.outside:
            self.stated = (loop.outside, loop.peak_around(self.plan, self.peak))
        return self.stated[1]

    @property
    def expected(self) -> float:
        return self.figures.time * self.slower


class LoopAccount(Protocol):
    """The account of a loop's memory around its plans, which the planner keeps."""

    @property
    def outside(self) -> object:
        """The memory counted outside of plans; another object once it has changed."""
        ...

    def around(self, graph: Graph, size: int) -> DeviceMemory: ...

    def budget_around(self, plan: Plan) -> DeviceMemory: ...

    def peak_around(self, plan: Plan, peak: int) -> DeviceMemory: ...


class TrainingLog:
    """Log of all plans of a step: the seconds of their set-up, and their iterations.

    tell: callback that gets a ProgressEvent of each change.
    """

    def __init__(self, tell: Progress) -> None:
        self.tell = tell
        self._setup: dict[str, float] = {}
        self._part_peak = 0
        self._notes: list[str] = []
        self._compared_before = self._warned_of_rolled_back = False
        # Weak: a step that the plan cache drops takes its record along.
        self._records = WeakKeyDictionary[PlannedStep, Record]()

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Report and time one phase of a plan's set-up."""
        self.tell(ProgressEvent(name))
        begun = perf_counter()
        try:
            with self.tell.phase(name) if isinstance(self.tell, PlanningLine) else nullcontext():
                yield
        finally:
            seconds = perf_counter() - begun
            self._setup[name] = self._setup.get(name, 0.0) + seconds
            _log.info("%s took %s", name, duration(seconds))

    def measured(self, done: int, total: int, _name: str) -> None:
        self.tell(ProgressEvent("measure", done, total))

    @property
    def setup_seconds(self) -> float:
        """The seconds of all phases of the plan that is being made."""
        return sum(self._setup.values())

    def remark(self, phase: str, line: str) -> None:
        """Note how good the plan that is being made is, or the times that it is made by."""
        self._notes.append(line)
        _log.info("%s: %s", phase, line)
        self.tell(ProgressEvent(phase, text=line))

    def compiled(self, done: int, total: int, _name: str) -> None:
        self.tell(ProgressEvent("compile", done, total))

    def solving(self, line: str) -> None:
        self.tell(ProgressEvent("solve", text=line))

    def compared_before(self) -> None:
        self._compared_before = True
        self.tell(ProgressEvent("compare", text="compared before"))

    def opened(self, step: PlannedStep, plan: Plan, machine: Machine | None, loop: LoopAccount) -> None:
        """Begin the record of a new plan, made in the phases since the last one."""
        figures = simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures
        # With gradient accumulation, the batches before the last may hold more than the last.
        peak = max(figures.peak, self._part_peak)
        self._records[step] = Record(
            plan,
            machine,
            figures,
            self._setup,
            peak,
            compared_before=self._compared_before,
            notes=self._notes,
        )
        # New objects instead of cleared ones: the record holds the old.
        self._setup, self._notes, self._compared_before, self._part_peak = {}, [], False, 0
        limit, device = loop.budget_around(plan), loop.peak_around(plan, peak)
        result = f"{duration(figures.time)} per iteration, {device.within(limit)}"
        _log.info("planned %s: %s", plan.graph.name, result)
        if isinstance(self.tell, PlanningLine):
            self.tell.planned(result)

    def joined(self, step: PlannedStep, plan: Plan, machine: Machine | None) -> None:
        """Begin the record of a part of another step's plan, whose record follows and has the set-up."""
        figures = simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures
        self._part_peak = figures.peak
        self._records[step] = Record(plan, machine, figures, {}, figures.peak)

    def plan(self, step: PlannedStep) -> Plan:
        return self._records[step].plan

    def solved(self, step: PlannedStep) -> Plan:
        """Note that the solver has come to its end for the step's plan, and return that."""
        record = self._records[step]
        record.plan = record.plan._replace(improvable=False)
        return record.plan

    def figures(self, step: PlannedStep) -> Figures:
        return self._records[step].figures

    def prediction(self, step: PlannedStep, loop: LoopAccount) -> Prediction:
        record = self._records[step]
        plan = record.plan
        figures = replace(record.figures, peak=record.peak)
        limit, device, around = loop.budget_around(plan), record.device(loop), partial(loop.peak_around, plan)
        stated = LoopStatement(limit, device) if limit.parts or device.parts else None
        write = partial(save, plan=plan, machine=record.machine, loop=stated)
        return Prediction(
            graph=plan.graph,
            schedule=plan.schedule,
            budget=plan.budget,
            figures=figures,
            limit=limit,
            device=device,
            _around=around,
            _save=write,
        )

    def iterated(self, step: PlannedStep, outcome: IterationResult, begun: Stamp, loop: LoopAccount) -> None:
        """Count an iteration, time it and report it.

        begun: stamp from before the iteration. A plan's first iteration is not timed: it creates optimizer
            states and moves weights. One that was rolled back is not: the plan's time is of one pass.
        """
        record = self._records.get(step)
        if record is None:
            return
        record.iterations += 1
        if outcome.rolled_back:
            self._count_rolled_back(record)
        elif not record.first:
            record.pending.append((begun, step.device.stamp()))
        record.first = False
        time = record.time()
        figures = record.figures
        done = self._iterations()
        # Of the whole loop: the budget that the user gave is the loop's, not the plan's.
        device = record.device(loop)
        planned = (device.total, figures.host_peak)
        used = (_measured(step, record.plan, loop), _host_peak(step))
        loss = None if outcome.loss is None else outcome.loss.detach()
        event = ProgressEvent("train", done, loss=loss, seconds=time, planned=planned, used=used)
        self.tell(replace(event, rolled_back=self._rolled_back()))

    def _count_rolled_back(self, record: Record) -> None:
        """Count an iteration that ran twice, and warn once if many do."""
        record.rolled_back += 1
        done, twice = self._iterations(), self._rolled_back()
        # Not before ENOUGH iterations: a GradScaler's first scales overflow by design.
        if not self._warned_of_rolled_back and done >= ENOUGH and twice > OFTEN * done:
            self._warned_of_rolled_back = True
            warn_user(
                f"early_updates: {twice:,} of {done:,} iterations were rolled back and ran twice: raise "
                "max_grad_norm, or leave early_updates out"
            )

    def counted(self, step: PlannedStep) -> None:
        """Count an iteration whose time is not the plan's alone."""
        if (record := self._records.get(step)) is not None:
            record.iterations += 1

    def drift(self, step: PlannedStep) -> tuple[float, float] | None:
        """Return the measured and the expected seconds per iteration if they differ, else None.

        None also if fewer than ENOUGH iterations are measured.
        """
        record = self._records.get(step)
        time = None if record is None or len(record.seconds) < ENOUGH else record.time()
        if record is None or time is None or abs(time / record.expected - 1) <= DRIFT:
            return None
        return time, record.expected

    def expected(self, step: PlannedStep) -> float:
        """Return the seconds that an iteration is expected to take."""
        return self._records[step].expected

    def note(self, step: PlannedStep, text: str) -> None:
        self._records[step].notes.append(text)
        _log.info("%s", text)
        self.tell(ProgressEvent("train", self._iterations(), text=text))

    def replanned(self, step: PlannedStep, plan: Plan, machine: Machine | None, measured: float) -> Figures:
        """Set the plan to the same schedule by measured times, and return its new figures.

        measured: seconds that its iterations took.
        """
        record = self._records[step]
        record.plan, record.machine = plan, machine
        record.figures = simulate(plan.graph, plan.schedule, budget=plan.budget, machine=machine).figures
        # `expected` is now the measured time, so one drift is reported once.
        record.slower = measured / record.figures.time
        # The median would mix times of before and after for _KEPT iterations.
        self.afresh(step)
        return record.figures

    def afresh(self, step: PlannedStep) -> None:
        """Discard the step's times so far."""
        record = self._records[step]
        record.seconds.clear()
        record.pending.clear()

    def succeeded(self, step: PlannedStep, made: PlannedStep, plan: Plan, loop: LoopAccount) -> float:
        """Move the step's record to its successor, another schedule of the same graph.

        Returns the seconds that an iteration is now expected to take.
        """
        record = self._records.pop(step)
        self.opened(made, plan, record.machine, loop)
        new = self._records[made]
        new.slower, new.iterations, new.rolled_back = record.slower, record.iterations, record.rolled_back
        # What `opened` took for the set-up is of the search in the background.
        new.setup, new.notes = record.setup, record.notes
        return new.expected

    def _rolled_back(self) -> int:
        return sum(each.rolled_back for each in self._records.values())

    def _iterations(self) -> int:
        return sum(each.iterations for each in self._records.values())

    def report(self, steps: Sequence[PlannedStep], loop: LoopAccount) -> Report:
        return Report([_report(step, self._records[step], loop) for step in steps if step in self._records])


def _host_peak(step: PlannedStep) -> int:
    return 0 if step.cycle is None else step.cycle.host.count.peak


def _measured(step: PlannedStep, plan: Plan, loop: LoopAccount) -> int | None:
    """Return the measured peak with what is outside of the plan, None if the allocator does not count."""
    peak = step.measured_peak
    return None if peak is None else loop.around(plan.graph, peak).total


def _report(step: PlannedStep, record: Record, loop: LoopAccount) -> PlanReport:
    program, figures = step.program, record.figures
    limit, device = loop.budget_around(record.plan), record.device(loop)
    return PlanReport(
        shapes={name: tuple(program.values[value].shape) for name, value in program.inputs.items()},
        budget=limit.total,
        predicted_time=figures.time,
        predicted_peak=device.total,
        predicted_host=figures.host_peak,
        iterations=record.iterations,
        rolled_back=record.rolled_back,
        time=record.time(),
        peak=_measured(step, record.plan, loop),
        host=_host_peak(step) + step.undo_bytes,
        warm_up=0 < len(record.seconds) < WARM_UP,
        setup=record.setup,
        notes=tuple(record.notes),
        compared_before=record.compared_before,
        limit=limit,
        device=device,
        policy=record.plan.policy,
    )
