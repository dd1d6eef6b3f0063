"""A schedule file and its graph file, read together and replayed, for check, show and run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import TypeGuard, cast

from ..graphs.errors import InputError, MismatchError
from ..graphs.files.documents import read_document
from ..graphs.files.fields import Row, mapping
from ..graphs.files.files import graph_digest, load_graph
from ..graphs.files.kinds import check_format
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.addresses.addresses import rows_of
from ..planner.addresses.layout import Layout
from ..planner.baseline import baseline, baseline_schedule, whole_baseline
from ..planner.bounds import least_memory, time_bound
from ..planner.budget import Budget
from ..planner.errors import InvalidScheduleError
from ..planner.report import Report
from ..planner.schedule.file import FORMAT, SHARDED_FORMAT, ScheduleFile, schedule_from_document
from ..planner.simulator.simulate import Figures, Replay, simulate
from ..planner.variants import runnable
from .exits import CheckFailedError
from .find_graph import find_graph, is_of_digest, load_graph_of, recorded_graph
from .printing.output import Output

TOLERANCE = 1e-6
"""Relative difference allowed between a recorded figure and the replayed one."""


@dataclass(frozen=True)
class Held:
    """A schedule file with its graph, and the budget and machine for which it must be valid.

    baseline_figures: figures of the baseline.
    budget: bytes of the device, None for no limit.
    own: whether both are those recorded in the file.
    """

    graph: Graph
    graph_path: Path
    file: ScheduleFile
    baseline_figures: Figures
    budget: int | None
    machine: Machine | None
    own: bool

    def replay(self) -> Replay:
        """Simulate the schedule. Raises InvalidScheduleError."""
        return simulate(self.graph, self.file.schedule, budget=self.budget, machine=self.machine)

    @property
    def loop(self) -> str:
        """The memory of the training loop that the schedule was made for, as a sentence; empty if unknown."""
        loop = self.file.loop
        return "" if loop is None or not self.own else loop.peak.within(loop.limit)

    def report(self, replay: Replay) -> Report:
        """Return the schedule's figures.

        The lower bound is the recorded one, if it was computed for this budget and machine and can be true.
        """
        recorded = self.file.predicted.get("lower_bound")
        holds = self.own and is_number(recorded) and 0 <= recorded <= replay.figures.time * (1 + TOLERANCE)
        return Report(
            replay.figures,
            self.baseline_figures,
            recorded if holds else time_bound(runnable(self.graph, self.machine)),
            str(self.file.solver.get("bound_by", "")) if holds else "",
        )


def is_number(recorded: object) -> TypeGuard[float]:
    """Tell whether a figure of a schedule file, which is read unchecked, is a finite number."""
    if isinstance(recorded, bool) or not isinstance(recorded, int | float):
        return False
    # False for NaN, infinities, and integers that no float holds.
    return -float_info.max <= recorded <= float_info.max


def open_schedule(
    schedule_path: Path,
    graph_path: Path | None,
    output: Output,
    budget: Budget | None = None,
    machine: Machine | None = None,
) -> Held:
    """Read both files.

    graph_path: None to find the graph next to the schedule; a note then says which file it is.
    budget, machine: these replace those recorded in the schedule.

    Raises InputError, and MismatchError if the schedule was made for another graph.
    """
    if graph_path is None:
        document = read_schedule_document(schedule_path)
        graph_path, graph = find_graph(schedule_path, document)
        output.note(f"graph: {graph_path}")
        file = schedule_from_document(document, graph, str(schedule_path))
    else:
        # A file of another kind is refused before the graph is read.
        graph = load_graph_of(graph_path, read_schedule_document(schedule_path))
        file = schedule_of_graph(schedule_path, graph, graph_path)
    baseline_figures = whole_baseline(graph)
    if budget is not None:
        budget.check_meant(least_memory(graph))
    return Held(
        graph=graph,
        graph_path=graph_path,
        file=file,
        baseline_figures=baseline_figures,
        budget=file.budget
        if budget is None
        else budget.bytes_of(baseline_figures.peak, graph.resident_bytes),
        machine=machine or file.machine or graph.machine,
        own=budget is None and machine is None,
    )


def open_baseline(graph_path: Path, output: Output) -> Held:
    """Read a graph, and return its baseline, which keeps everything, as a schedule file."""
    graph = load_graph(graph_path)
    output.note(f"{graph_path} is a graph: its baseline is shown; `plan solve` makes a schedule of it")
    file = ScheduleFile(baseline_schedule(graph), graph.name, graph_digest(graph))
    return Held(
        graph=graph,
        graph_path=graph_path,
        file=file,
        baseline_figures=baseline(graph),
        budget=None,
        machine=graph.machine,
        own=True,
    )


def is_graph(path: Path) -> bool:
    """Tell whether a file is a graph. Raises InputError if it can't be read."""
    document = read_document(path)
    return isinstance(document, dict) and str(cast("Row", document).get("format")).startswith("plan-graph/")


def schedule_of_graph(schedule_path: Path, graph: Graph, graph_path: Path) -> ScheduleFile:
    """Read a schedule of this graph. Raises InputError, and MismatchError if it is of another graph."""
    document = read_schedule_document(schedule_path)
    _check_graph(document, schedule_path, graph, graph_path)
    return schedule_from_document(document, graph, str(schedule_path))


def arena_of(held: Held, path: Path) -> Layout | None:
    """Return the addresses in the file, which hold for its own budget and machine.

    Raises CheckFailedError if they overlap, or if their arena is larger than the budget.
    """
    file = held.file
    if file.addresses is None:
        return None
    machine = file.machine or held.graph.machine
    try:
        rows = rows_of(held.graph, file.schedule, budget=file.budget, machine=machine)
        layout = Layout.recorded(held.graph, rows, file.addresses)
    except InvalidScheduleError as error:
        raise CheckFailedError(f"{path}: {error}") from error
    if not held.own and held.budget is not None and layout.size > held.budget:
        raise CheckFailedError(f"{path}: its arena has {layout.size:,} bytes, {held.budget:,} are allowed")
    return layout


def validate_schedule(held: Held, path: Path) -> Replay:
    """Replay a schedule.

    Raises CheckFailedError, with step, tensor and rule in one line, if it is not valid.
    """
    try:
        return held.replay()
    except InvalidScheduleError as error:
        raise CheckFailedError(f"{path}: {error}") from error


def read_schedule_document(path: Path) -> object:
    """Read a schedule's file. Raises InputError if it is of another kind, before the graph is looked for."""
    document = read_document(path)
    try:
        check_format(mapping(document, "a schedule"), FORMAT, SHARDED_FORMAT)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return document


def _check_graph(document: object, schedule_path: Path, graph: Graph, graph_path: Path) -> None:
    """Raise MismatchError if the schedule records the SHA-256 of another graph."""
    made_for = recorded_graph(document)
    if made_for is not None and not is_of_digest(graph, graph_path, made_for[1]):
        raise MismatchError(
            f"{schedule_path} was made for another graph than {graph_path}: its graph has the sha256 "
            f"{made_for[1][:12]}…, this one {graph_digest(graph)[:12]}…"
        )
