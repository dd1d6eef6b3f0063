"""Plan cache on disk: a restart skips profiling and solving.

A plan is a folder of two files, graph.json and schedule.json, as `plan show` and `plan check` read them. It
is found by the hash of all that it depends on: the traced program, when it updates weights, the budget, the
machine, the solver and its time limit, PyTorch, memplan, and the computer with its threads, driver and flags
(devices/device/card.py), since times are measured on it. A plan that is damaged or not valid is made anew.
One that was found is compared with eager PyTorch like any other plan, once: compared.json has the signature
under which it was found equal (guards/signature.py). If this signature still holds, with this very
plan, the comparison is skipped.

The folder is private, like all caches (graphs/folders/private.py): a plan that another user could have
written is not used.

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
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, NamedTuple

import torch

from ...devices.device.choice import device_of
from ...graphs.errors import InputError, MemplanError
from ...graphs.files.documents import MOST_BYTES, document_bytes, parse_document
from ...graphs.files.files import graph_digest, save_graph
from ...graphs.files.read import graph_from_document
from ...graphs.files.write import graph_to_document
from ...graphs.folders.private import PrivateFolder
from ...graphs.folders.sources import sources_digest
from ...graphs.graph import Graph
from ...graphs.machine import Machine
from ...planner.schedule.file import (
    LoopStatement,
    save_schedule,
    schedule_from_document,
    schedule_to_document,
)
from ...planner.schedule.schedule import Schedule
from ...planner.simulator.simulate import simulate
from ...profiling.compare.compiled import Compiled, compiled_as_in
from ...program.program import Program
from ...tracing.align import aligned
from ...updates.order import check_order

_log = logging.getLogger(__name__)

MOST = 2**30
"""Limit of the bytes of all plans in a folder."""

_IN_USE = 3600.0
_GRAPH, _SCHEDULE, _COMPARED = "graph.json", "schedule.json", "compared.json"
_FILES = (_GRAPH, _SCHEDULE, _COMPARED)


class Plan(NamedTuple):
    """A plan for one traced program.

    program: the program, in the graph's order.
    budget: bytes.
    compiled: the compiled operations and the program that they replace, None if there are none.
    improvable: the solver was stopped before its end, and goes on while the plan trains.
    policy: of FSDP2, that the schedule is, empty if it is none.
    """

    program: Program
    graph: Graph
    schedule: Schedule
    budget: int
    compiled: Compiled | None = None
    improvable: bool = False
    policy: str = ""

    @property
    def rounds(self) -> bool:
        """Whether its results are rounded otherwise than eager PyTorch's."""
        return self.compiled is not None and not self.compiled.exact

    @property
    def traced(self) -> Program:
        """The program before operations were compiled."""
        return self.program if self.compiled is None else self.compiled.uncompiled


def find(
    folder: PrivateFolder,
    program: Program,
    machine: Machine | None,
    asked: tuple[Any, ...],
    *,
    same_bytes: bool = True,
) -> Plan | None:
    """Return the plan on disk for this program, None if there is no valid one.

    machine: the machine, if the plan's graph names none.
    asked: all that the plan depends on apart from program and environment.
    same_bytes: whether its graph must have the program's bytes, see `aligned`.
    """
    found = partial(_found, program=program, machine=machine, same_bytes=same_bytes)
    final = found(_place(folder, program, asked))
    if final is not None:
        _log.info("plan cache %s: a plan of this program, options and machine is there", folder.path)
        return final
    improvable = found(_place(folder, program, asked, improvable=True))
    what = "no plan" if improvable is None else "a plan whose search was not ended"
    _log.info("plan cache %s: %s of this program, options and machine is there", folder.path, what)
    return improvable and improvable._replace(improvable=True)


def _found(
    place: PrivateFolder, program: Program, machine: Machine | None, *, same_bytes: bool
) -> Plan | None:
    with suppress(MemplanError, OSError):
        graph_row, schedule_row = _read(place, _GRAPH), _read(place, _SCHEDULE)
        if graph_row is None or schedule_row is None:
            return None
        graph = graph_from_document(graph_row, _GRAPH)
        held = schedule_from_document(schedule_row, graph, _SCHEDULE)
        if held.budget is not None and held.graph_sha256 == graph_digest(graph):
            # Raises InvalidScheduleError for a file that was damaged or edited: the plan is made anew.
            simulate(graph, held.schedule, budget=held.budget, machine=graph.machine or machine)
            if (used := place.existing()) is not None:
                with suppress(OSError):  # a folder that is only read
                    os.utime(used)
            made, compiled = compiled_as_in(graph, program)
            ordered = aligned(made, graph, same_bytes=same_bytes)
            check_order(ordered)
            policy = str(held.solver.get("policy", ""))
            return Plan(ordered, graph, held.schedule, held.budget, compiled, policy=policy)
    return None


def keep(folder: PrivateFolder, plan: Plan, machine: Machine | None, asked: tuple[Any, ...]) -> None:
    """Save a plan on disk. Errors are ignored: a full or read-only disk costs the copy, not the plan."""
    place = _place(folder, plan.program, asked, improvable=plan.improvable)
    with suppress(MemplanError, OSError):
        schedule = schedule_to_document(
            plan.graph, plan.schedule, budget=plan.budget, machine=machine, solver=_provenance(plan)
        )
        rows = {_GRAPH: graph_to_document(plan.graph), _SCHEDULE: schedule}
        if all(_write(place, name, row) for name, row in rows.items()):
            _log.info("plan cache %s: the plan is in %s", folder.path, place.path and place.path.name)
            _trim(folder)


def _read(place: PrivateFolder, name: str) -> object:
    """Return a document of a plan, None if there is none. Raises InputError."""
    raw = place.read(name, MOST_BYTES[".json"])
    return None if raw is None else parse_document(raw, Path(name))


def _write(place: PrivateFolder, name: str, row: object) -> bool:
    return place.write(name, document_bytes(row, Path(name)))


def vouch(folder: PrivateFolder, plan: Plan, asked: tuple[Any, ...], grounds: str) -> None:
    """Note on disk that this plan was compared with eager PyTorch, under this signature, and found equal."""
    place = _place(folder, plan.program, asked, improvable=plan.improvable)
    with suppress(MemplanError):
        _write(place, _COMPARED, {"grounds": _of(plan, grounds)})


def vouched(folder: PrivateFolder, plan: Plan, asked: tuple[Any, ...], grounds: str) -> bool:
    """Tell whether the plan was found equal under the same signature."""
    place = _place(folder, plan.program, asked, improvable=plan.improvable)
    with suppress(MemplanError):
        return _read(place, _COMPARED) == {"grounds": _of(plan, grounds)}
    return False


def _trim(private: PrivateFolder) -> None:
    """Remove the least recently used plans above MOST; other files in the folder are left as they are."""
    plans: list[tuple[float, int, Path]] = []
    folder = private.existing()
    for place in () if folder is None else folder.iterdir():
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


def save(place: Path, plan: Plan, machine: Machine | None, loop: LoopStatement | None = None) -> None:
    """Write a plan as graph.json and schedule.json in this folder.

    Raises InputError if they can't be written.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{place}: can't make the folder: {error.strerror or error}") from error
    save_graph(plan.graph, place / "graph.json")
    save_schedule(
        place / "schedule.json",
        plan.graph,
        plan.schedule,
        budget=plan.budget,
        machine=machine,
        solver=_provenance(plan),
        loop=loop,
    )


def _provenance(plan: Plan) -> dict[str, str]:
    """Return what a schedule's file says of its solver."""
    return {"policy": plan.policy} if plan.policy else {}


def _place(
    folder: PrivateFolder, program: Program, asked: tuple[Any, ...], *, improvable: bool = False
) -> PrivateFolder:
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
