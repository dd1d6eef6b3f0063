"""Predicted and measured figures of a step's plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...graphs.graph import Graph
from ...graphs.units import duration, format_bytes
from ...planner.baseline import baseline
from ...planner.card import Card, cost_entries
from ...planner.device_memory import DeviceMemory
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import Figures


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
        limit, device (DeviceMemory): budget and predicted peak with their parts: the plan's, optimizer
            states, gradients, and what else is outside of the plan.
        notes (tuple of str, default ()): that the machine was busy when operations were measured, that the
            solver was stopped at its best so far, when times drifted, and what became of the plan, a line
            each.
        compared_before (bool, default False): whether the comparison with eager PyTorch was skipped, since it
            succeeded before under the same signature.
        rolled_back (int, default 0): number of the iterations whose early updates were put back, and which
            ran twice.
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
    limit: DeviceMemory
    device: DeviceMemory
    notes: tuple[str, ...] = ()
    compared_before: bool = False
    rolled_back: int = 0
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
        # Plans of several shapes have most of these lines in common: each is shown once.
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
        # Both peaks include what the loop has outside of the plan, or their ratio would flatter.
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


def _parts(plan: PlanReport) -> Iterator[str]:
    """Yield what budget and predicted peak consist of, if a part of them is outside of the plan, iterations
    that ran twice, and the policy."""
    for name, memory in (("budget", plan.limit), ("predicted peak", plan.device)):
        if memory.parts:
            yield f"{name} {memory}"
    if plan.rolled_back:
        yield f"{plan.rolled_back:,} of {plan.iterations:,} iterations were rolled back and ran twice"
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
