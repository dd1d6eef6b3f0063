"""Plan cache on disk: a restart skips profiling and solving.

A plan is a folder of two files, graph.json and schedule.json, as `plan show` and `plan check` read them. It
is found by the hash of all that it depends on: the traced program, when it updates weights, the budget, the
machine, the solver and its time limit, PyTorch, memplan, and the computer with its threads, driver and flags
(runtime/device/card.py), since times are measured on it. A plan that is damaged or not valid is made anew.
One that was found is compared with eager PyTorch like any other plan, once: compared.json has the signature
under which it was found equal (runtime/compare/signature.py). If this signature still holds, with this very
plan, the comparison is skipped.

If the plans of a folder exceed `MOST` bytes, the least recently used are removed. None that was used in the
last hour is removed: another process may be using it.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import torch

from ..graphs.errors import InputError, MemplanError
from ..graphs.files.documents import read_document, write_document
from ..graphs.files.files import graph_digest, load_graph, save_graph
from ..graphs.folders.sources import sources_digest
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

_log = logging.getLogger(__name__)

MOST = 2**30
"""Limit of the bytes of all plans in a folder."""

_IN_USE = 3600.0
_FILES = ("graph.json", "schedule.json", "compared.json")


class Plan(NamedTuple):
    """A plan for one traced program.

    program: the program, in the graph's order.
    budget: bytes.
    compiled: the compiled operations and the program that they replace, None if there are none.
    improvable: the solver was stopped before its end, and goes on while the plan trains.
    """

    program: Program
    graph: Graph
    schedule: Schedule
    budget: int
    compiled: Compiled | None = None
    improvable: bool = False

    @property
    def traced(self) -> Program:
        """The program before operations were compiled."""
        return self.program if self.compiled is None else self.compiled.uncompiled


def find(folder: Path, program: Program, machine: Machine | None, asked: tuple[Any, ...]) -> Plan | None:
    """Return the plan on disk for this program, None if there is no valid one.

    machine: the machine, if the plan's graph names none.
    asked: all that the plan depends on apart from program and environment.
    """
    final = _found(_place(folder, program, asked), program, machine)
    if final is not None:
        _log.info("plan cache %s: a plan of this program, options and machine is there", folder)
        return final
    improvable = _found(_place(folder, program, asked, improvable=True), program, machine)
    what = "no plan" if improvable is None else "a plan whose search was not ended"
    _log.info("plan cache %s: %s of this program, options and machine is there", folder, what)
    return improvable and improvable._replace(improvable=True)


def _found(place: Path, program: Program, machine: Machine | None) -> Plan | None:
    with suppress(MemplanError, OSError):
        graph = load_graph(place / "graph.json")
        held = load_schedule(place / "schedule.json", graph)
        if held.budget is not None and held.graph_sha256 == graph_digest(graph):
            # Raises InvalidScheduleError for a file that was damaged or edited: the plan is made anew.
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
    """Save a plan on disk. Errors are ignored: a full or read-only disk costs the copy, not the plan."""
    with suppress(MemplanError, OSError):
        place = _place(folder, plan.program, asked, improvable=plan.improvable)
        save(place, plan, machine)
        os.utime(place)
        _log.info("plan cache %s: the plan is in %s", folder, place.name)
        _trim(folder)


def vouch(folder: Path, plan: Plan, asked: tuple[Any, ...], grounds: str) -> None:
    """Note on disk that this plan was compared with eager PyTorch, under this signature, and found equal."""
    place = _place(folder, plan.program, asked, improvable=plan.improvable)
    with suppress(MemplanError):
        write_document({"grounds": _of(plan, grounds)}, place / "compared.json")


def vouched(folder: Path, plan: Plan, asked: tuple[Any, ...], grounds: str) -> bool:
    """Tell whether the plan was found equal under the same signature."""
    place = _place(folder, plan.program, asked, improvable=plan.improvable)
    with suppress(MemplanError):
        return read_document(place / "compared.json") == {"grounds": _of(plan, grounds)}
    return False


def _trim(folder: Path) -> None:
    """Remove the least recently used plans above MOST; other files in the folder are left as they are."""
    plans: list[tuple[float, int, Path]] = []
    for place in folder.iterdir():
        with suppress(OSError):  # another process trims too
            if re.fullmatch("[0-9a-f]{32}", place.name):
                size = sum((place / name).stat().st_size for name in _FILES if (place / name).exists())
                plans.append((place.stat().st_mtime, size, place))
    left = sum(size for _used, size, _place in plans)
    for used, size, place in sorted(plans):
        if left <= MOST or used > time() - _IN_USE:
            return  # in ascending order of last use: all that follow are in use too
        with suppress(OSError):
            for name in _FILES:
                (place / name).unlink(missing_ok=True)
            place.rmdir()
            _log.info("plan cache %s: %s, used least recently, is removed", folder, place.name)
        left -= size


def _of(plan: Plan, grounds: str) -> str:
    """Return the signature together with the plan: another process may have replaced the plan meanwhile."""
    schedule, offloaded = plan.schedule, plan.schedule.initial
    columns = [column.tolist() for column in (schedule.verbs, schedule.targets, schedule.wheres)]
    initial = [sorted(map(int, there)) for there in (offloaded.host, offloaded.disk, offloaded.both)]
    text = json.dumps([grounds, graph_digest(plan.graph), columns, initial])
    return sha256(text.encode()).hexdigest()


def save(place: Path, plan: Plan, machine: Machine | None) -> None:
    """Write a plan as graph.json and schedule.json in this folder.

    Raises InputError if they can't be written.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: can't make the folder: {error.strerror or error}") from error
    save_graph(plan.graph, place / "graph.json")
    save_schedule(place / "schedule.json", plan.graph, plan.schedule, budget=plan.budget, machine=machine)


def _place(folder: Path, program: Program, asked: tuple[Any, ...], *, improvable: bool = False) -> Path:
    """Return the folder of a plan. One that is improvable has its own: a final one replaces it."""
    device = device_of(program.device)
    surroundings = (
        str(torch.__version__),
        sources_digest(),
        platform.node(),
        device.name(),
        *device.surroundings().items(),
        torch.get_num_threads(),
        *(["improvable"] if improvable else []),
    )
    text = json.dumps([program.fingerprint, *map(str, asked), *surroundings])
    return folder / sha256(text.encode()).hexdigest()[:32]
