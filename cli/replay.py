"""A schedule file and its graph file, read together and replayed, for check, show and run."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import TypeGuard

from ..graphs.errors import MismatchError
from ..graphs.files.documents import read_document, regular_size
from ..graphs.files.files import graph_digest, load_graph
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.addresses.addresses import rows_of
from ..planner.addresses.layout import Layout
from ..planner.baseline import baseline
from ..planner.bounds import least_memory, time_bound
from ..planner.budget import Budget
from ..planner.errors import InvalidScheduleError
from ..planner.report import Report
from ..planner.schedule.file import ScheduleFile, schedule_from_document
from ..planner.simulator.simulate import Figures, Replay, simulate
from .exits import CheckFailedError

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
    file: ScheduleFile
    baseline_figures: Figures
    budget: int | None
    machine: Machine | None
    own: bool

    def replay(self) -> Replay:
        """Simulate the schedule. Raises InvalidScheduleError."""
        return simulate(self.graph, self.file.schedule, budget=self.budget, machine=self.machine)

    def report(self, replay: Replay) -> Report:
        """Return the schedule's figures.

        The lower bound is the recorded one, if it was computed for this budget and machine and can be true.
        """
        recorded = self.file.predicted.get("lower_bound")
        holds = self.own and is_number(recorded) and 0 <= recorded <= replay.figures.time * (1 + TOLERANCE)
        return Report(replay.figures, self.baseline_figures, recorded if holds else time_bound(self.graph))


def is_number(recorded: object) -> TypeGuard[float]:
    """Tell whether a figure of a schedule file, which is read unchecked, is a finite number."""
    if isinstance(recorded, bool) or not isinstance(recorded, int | float):
        return False
    return -float_info.max <= recorded <= float_info.max


def open_schedule(
    schedule_path: Path, graph_path: Path, budget: Budget | None = None, machine: Machine | None = None
) -> Held:
    """Read both files. budget, machine: these replace those recorded in the schedule.

    Raises InputError, and MismatchError if the schedule was made for another graph.
    """
    graph = load_graph(graph_path)
    document = read_document(schedule_path)
    _check_graph(document, schedule_path, graph, graph_path)
    file = schedule_from_document(document, graph, str(schedule_path))
    baseline_figures = baseline(graph)
    if budget is not None:
        budget.check_meant(least_memory(graph))
    return Held(
        graph,
        file,
        baseline_figures,
        file.budget if budget is None else budget.bytes_of(baseline_figures.peak, graph.resident_bytes),
        machine or file.machine or graph.machine,
        own=budget is None and machine is None,
    )


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


def _check_graph(document: object, schedule_path: Path, graph: Graph, graph_path: Path) -> None:
    """Check that the SHA-256 in the schedule is that of the graph's content, or of its file's bytes.

    Raises MismatchError.
    """
    made_for = document.get("graph") if isinstance(document, dict) else None  # pyright: ignore
    digest = made_for.get("sha256") if isinstance(made_for, dict) else None  # pyright: ignore
    if not isinstance(digest, str):
        return  # not a schedule: reading it as one reports what is wrong
    digest = digest.removeprefix("sha256:")
    if digest != graph_digest(graph) and digest not in _file_digests(graph_path):
        raise MismatchError(
            f"{schedule_path} was made for another graph than {graph_path}: its graph has the sha256 "
            f"{digest[:12]}…, this one {graph_digest(graph)[:12]}…"
        )


def _file_digests(path: Path) -> set[str]:
    regular_size(path)
    raw = path.read_bytes()
    contents = [raw, gzip.decompress(raw)] if path.suffix == ".gz" else [raw]
    return {hashlib.sha256(content).hexdigest() for content in contents}
