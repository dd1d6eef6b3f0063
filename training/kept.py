"""Plans on disk: a second start measures and solves nothing.

A plan is a folder of two files, graph.json and schedule.json, as `plan show` and `plan check` read them. It
is found under the hash of all that it depends on: the traced program, when it updates weights, the budget,
the machine, the solver and its seconds, PyTorch, memplan, and the computer with its threads, since times are
measured on it. What is broken or does not hold is planned anew; what was found is compared with plain PyTorch
like any other plan, once: compared.json has on what grounds it was found equal (runtime/compare/grounds.py).
Where these still hold, with this very plan, it is not compared again.

Where the plans of a folder have more than `MOST` bytes, those go that were not used for longest. None goes
that was used in the last hour: another process may be at it.
"""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import torch

from ..graphs.errors import InputError, MemplanError
from ..graphs.files.documents import read_document, write_document
from ..graphs.files.files import graph_digest, load_graph, save_graph
from ..graphs.graph import Graph
from ..graphs.machine import Machine
from ..planner.schedule.file import load_schedule, save_schedule
from ..planner.schedule.schedule import Schedule
from ..planner.simulator.simulate import simulate
from ..runtime.compare.compiled import Compiled
from ..runtime.device.choice import device_of
from ..runtime.fusion.choice import as_in
from ..runtime.program.program import Program
from ..runtime.trace.align import aligned
from ..runtime.updates.order import check_order

MOST = 2**30
"""Bytes of all plans in a folder."""

_IN_USE = 3600.0
_FILES = ("graph.json", "schedule.json", "compared.json")


class Plan(NamedTuple):
    """program: in the graph's order. budget: bytes. compiled: where operations are; by what it was."""

    program: Program
    graph: Graph
    schedule: Schedule
    budget: int
    compiled: Compiled | None = None

    @property
    def traced(self) -> Program:
        """Before operations were compiled."""
        return self.program if self.compiled is None else self.compiled.plain


def find(folder: Path, program: Program, machine: Machine | None, asked: tuple[Any, ...]) -> Plan | None:
    """None where there is none for this program that is whole. machine: where its graph names none. asked:
    all that it depends on beside program and surroundings."""
    place = _place(folder, program, asked)
    with suppress(MemplanError, OSError):
        graph = load_graph(place / "graph.json")
        held = load_schedule(place / "schedule.json", graph)
        if held.budget is not None and held.graph_sha256 == graph_digest(graph):
            simulate(graph, held.schedule, budget=held.budget, machine=graph.machine or machine)
            with suppress(OSError):  # a folder that is only read
                os.utime(place)
            made = as_in(graph, program)
            compiled = Compiled(program, made.kernels) if made.kernels else None
            ordered = aligned(made.program, graph)
            check_order(ordered)
            return Plan(ordered, graph, held.schedule, held.budget, compiled)
    return None


def keep(folder: Path, plan: Plan, machine: Machine | None, asked: tuple[Any, ...]) -> None:
    """A disk that is full or read-only costs the copy, not the plan."""
    with suppress(MemplanError, OSError):
        place = _place(folder, plan.program, asked)
        save(place, plan, machine)
        os.utime(place)
        _trim(folder)


def vouch(folder: Path, plan: Plan, asked: tuple[Any, ...], grounds: str) -> None:
    """This plan was compared with plain PyTorch, on these grounds, and found equal."""
    place = _place(folder, plan.program, asked)
    with suppress(MemplanError):
        write_document({"grounds": _of(plan, grounds)}, place / "compared.json")


def vouched(folder: Path, plan: Plan, asked: tuple[Any, ...], grounds: str) -> bool:
    """Whether it was, on the same grounds."""
    place = _place(folder, plan.program, asked)
    with suppress(MemplanError):
        return read_document(place / "compared.json") == {"grounds": _of(plan, grounds)}
    return False


def _trim(folder: Path) -> None:
    """A plan's folder has the time of its last use; what else lies beside plans is left alone."""
    plans: list[tuple[float, int, Path]] = []
    for place in folder.iterdir():
        with suppress(OSError):  # another process trims too
            if re.fullmatch("[0-9a-f]{32}", place.name):
                size = sum((place / name).stat().st_size for name in _FILES if (place / name).exists())
                plans.append((place.stat().st_mtime, size, place))
    left = sum(size for _used, size, _place in plans)
    for used, size, place in sorted(plans):
        if left <= MOST or used > time() - _IN_USE:
            return
        with suppress(OSError):
            for name in _FILES:
                (place / name).unlink(missing_ok=True)
            place.rmdir()
        left -= size


def _of(plan: Plan, grounds: str) -> str:
    """With the plan itself: another process may have kept another one in its place meanwhile."""
    schedule, away = plan.schedule, plan.schedule.initial
    columns = [column.tolist() for column in (schedule.verbs, schedule.targets, schedule.wheres)]
    initial = [sorted(map(int, there)) for there in (away.host, away.disk, away.both)]
    text = json.dumps([grounds, graph_digest(plan.graph), columns, initial])
    return sha256(text.encode()).hexdigest()


def save(place: Path, plan: Plan, machine: Machine | None) -> None:
    """As graph.json and schedule.json in this folder. Raises InputError where they can't be written."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: can't make the folder: {error.strerror or error}") from error
    save_graph(plan.graph, place / "graph.json")
    save_schedule(place / "schedule.json", plan.graph, plan.schedule, budget=plan.budget, machine=machine)


def _place(folder: Path, program: Program, asked: tuple[Any, ...]) -> Path:
    surroundings = (
        str(torch.__version__),
        _sources(),
        platform.node(),
        device_of(program.device).name(),
        torch.get_num_threads(),
    )
    text = json.dumps([program.fingerprint, *map(str, asked), *surroundings])
    return folder / sha256(text.encode()).hexdigest()[:32]


@cache
def _sources() -> str:
    """The hash of memplan's own files: another state of them may measure and solve otherwise."""
    root = Path(__file__).parents[1]
    rooms = (path for path in root.iterdir() if (path / "__init__.py").exists())
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
