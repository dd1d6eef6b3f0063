"""Predicted and measured figures of a step's plans, and the log of its planning and training."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from ...devices.device.device import Stamp
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ...graphs.units import duration, format_bytes
from ...planner.baseline import baseline
from ...planner.card import Card, cost_entries
from ...planner.device_memory import DeviceMemory
from ...planner.schedule.file import LoopStatement
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import Figures, simulate
from ...steps.execute import PlannedStep
from ..progress import PlanningLine, Progress, ProgressEvent
from .plan_cache import Plan, save

_log = logging.getLogger(__name__)

_KEPT = 100
"""Number of the last iterations whose times are kept."""

WARM_UP = 10
"""Iterations that are timed before a time counts: kernels, caches and allocators warm up meanwhile."""

ENOUGH = 20
"""Iterations measured before their median is compared with the plan."""

DRIFT = 0.1
"""Relative difference from the plan above which a drift is reported."""


@dataclass(frozen=True)
class PlanReport:
    """Predicted and measured figures of one plan.

    Attributes:
        shapes (dict): shape of each input, by name.
        budget (int): the loop's device memory in bytes, as it was given.
        predicted_time (float): planned seconds per iteration.
        predicted_peak (int): planned peak of device memory of the whole loop, bytes.
        predicted_host (int): planned peak of host memory for offloading, bytes.
        iterations (int): number of iterations run by this plan.
        time (float): measured seconds per iteration, the median of the last ones without the first; None if
            not measured.
        warm_up (bool): whether `time` is of the first iterations alone, which may be several times slower.
        peak (int): measured peak of device memory in the first iterations, bytes, with what is counted
            outside of the plan; None if the device's allocator does not count (CUDA's does).
        host (int): measured peak of host memory, bytes.
        setup (dict): seconds of planning, by phase. A plan found on disk was neither measured nor solved.
        notes (tuple of str, default ()): that the machine was busy when operations were measured, that the
            solver was stopped at its best so far, when times drifted, and what became of the plan, a line
            each.
        compared_before (bool, default False): whether the comparison with eager PyTorch was skipped, since it
            succeeded before under the same signature.
        limit, device (DeviceMemory): budget and predicted peak with their parts: the plan's, optimizer
            states, gradients, and what else is outside of the plan.
        policy (str): in sharded training the one of FSDP2's policies that the schedule is, such as
            "reshard, checkpoints", if none is faster; empty if it is another.
    """

    shapes: dict[str, tuple[int, ...]]
    budget: int
    predicted_time: float
    predicted_peak: int
    predicted_host: int
    iterations: int
    time: float | None
    peak: int | None
    host: int
    warm_up: bool
    setup: dict[str, float]
    notes: tuple[str, ...] = ()
    compared_before: bool = False
    limit: DeviceMemory = field(default_factory=lambda: DeviceMemory(0))
    device: DeviceMemory = field(default_factory=lambda: DeviceMemory(0))
    policy: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """Figures of a step's plans, as `Step.report` returns them; its text is a table.

    Attributes:
        plans (sequence of PlanReport): one per plan, the most recently used first.
    """

    plans: Sequence[PlanReport]

    def __str__(self) -> str:
        heads = ("shapes", "budget", "iterations", "time", "predicted time", "peak", "predicted peak")
        heads += ("host", "set-up")
        rows = [heads, *map(_row, self.plans)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (zip(row, widths, strict=True) for row in rows)
        table = ["  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines]
        parts = dict.fromkeys(line for plan in self.plans for line in _parts(plan))
        return "\n".join([*table, *parts, *(note for plan in self.plans for note in plan.notes)])

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Prediction:
    """The plan of a step for one shape: graph, schedule, budget in bytes and predicted figures.

    `figures.time` is in seconds, `figures.peak` in bytes: with gradient accumulation, of an update's last
    batch, and of its largest. They and the budget are the schedule's; `limit` and `device` are budget and
    peak of the whole loop, with what is outside of the plan.
    """

    graph: Graph
    schedule: Schedule
    budget: int
    figures: Figures
    limit: DeviceMemory
    device: DeviceMemory
    _around: Callable[[int], DeviceMemory]
    _save: Callable[[Path], None]

    def card(self) -> Card:
        """Return the plan's figures, compared with the schedule that keeps everything."""
        reference = baseline(self.graph)
        reference = replace(reference, peak=self._around(reference.peak).total)
        entries = cost_entries(self.figures, reference, around=(self.device, self.limit))
        return Card(f"Plan within {format_bytes(self.limit.total)}", tuple(entries))

    def __repr__(self) -> str:
        return self.card().line()

    def _repr_html_(self) -> str:
        return self.card().html()

    def save(self, folder: str | Path) -> None:
        """Write the plan as graph.json and schedule.json, which the `plan` commands read.

        Args:
            folder (str or Path): the folder; it is made if it does not exist.

        Raises:
            InputError: the files can't be written.
        """
        self._save(Path(folder))


@dataclass
class Record:
    """Log of one plan.

    setup: seconds by phase.
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
    first: bool = True
    notes: list[str] = field(default_factory=list[str])
    seconds: deque[float] = field(default_factory=lambda: deque[float](maxlen=_KEPT))
    pending: deque[tuple[Stamp, Stamp]] = field(default_factory=deque[tuple[Stamp, Stamp]])
    stated: tuple[object, DeviceMemory] | None = None

    def time(self) -> float | None:
        """Return the median seconds per iteration, of those that the device has ended."""
        while self.pending and self.pending[0][1].query():
            begun, ended = self.pending.popleft()
            self.seconds.append(begun.elapsed_time(ended) / 1000)
        return median(self.seconds) if self.seconds else None

    def device(self, loop: LoopAccount) -> DeviceMemory:
        """Return the predicted peak of the whole loop. Each iteration reports it: it is computed once."""
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
        self._compared_before = False
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
        return Prediction(plan.graph, plan.schedule, plan.budget, figures, limit, device, around, write)

    def iterated(self, step: PlannedStep, loss: Tensor | None, begun: Stamp, loop: LoopAccount) -> None:
        """Count an iteration, time it and report it.

        loss: None if the iteration has none.
        begun: stamp from before the iteration. A plan's first iteration is not timed: it creates optimizer
            states and moves weights.
        """
        record = self._records.get(step)
        if record is None:
            return
        record.iterations += 1
        if not record.first:
            record.pending.append((begun, step.device.stamp()))
        record.first = False
        time = record.time()
        figures = record.figures
        done = self._iterations()
        device = record.device(loop)
        planned = (device.total, figures.host_peak)
        used = (_measured(step, record.plan, loop), _host_peak(step))
        loss = None if loss is None else loss.detach()
        self.tell(ProgressEvent("train", done, loss=loss, seconds=time, planned=planned, used=used))

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
        record.slower = measured / record.figures.time
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
        new.slower, new.iterations = record.slower, record.iterations
        new.setup, new.notes = record.setup, record.notes
        return new.expected

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


def _parts(plan: PlanReport) -> Iterator[str]:
    """Yield what budget and predicted peak consist of, if a part of them is outside of the plan, and the
    policy."""
    for name, memory in (("budget", plan.limit), ("predicted peak", plan.device)):
        if memory.parts:
            yield f"{name} {memory}"
    if plan.policy:
        yield f"policy {plan.policy}: the schedule is FSDP2's"


def _row(plan: PlanReport) -> tuple[str, ...]:
    shapes = " ".join(f"{name}:{'×'.join(map(str, shape))}" for name, shape in plan.shapes.items())
    return (
        shapes[:40],
        format_bytes(plan.budget),
        f"{plan.iterations:,}",
        "-" if plan.time is None else f"{duration(plan.time)}{' (warm-up)' if plan.warm_up else ''}",
        duration(plan.predicted_time),
        "-" if plan.peak is None else format_bytes(plan.peak),
        format_bytes(plan.predicted_peak),
        format_bytes(plan.host),
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in plan.setup.items())
        + (", compared before" if plan.compared_before else ""),
    )
