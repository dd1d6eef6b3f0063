"""Schedules that refusals name, kept for the next try: the budget that an error names is met at once.

A solver that is cut off by the clock may find less the next time. So the schedule within the smallest budget
found is kept, in this process and, if a folder is given, on disk; the next solve of the same operations on
the same tensors starts from it if it holds. Times don't count: they are measured anew by each process.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from ...graphs.errors import InputError, MemplanError
from ...graphs.files.documents import document_bytes, parse_document
from ...graphs.folders.private import PrivateFolder
from ...graphs.graph import Graph
from ...planner.schedule.file import schedule_from_document, schedule_to_document
from ...planner.schedule.schedule import Schedule
from ..allowed import restrict
from ..problem import InfeasibleError, Problem
from .warm_start import start_figures

MOST = 64
"""Schedules kept, in a process and in a folder."""

_here: OrderedDict[str, Schedule] = OrderedDict()


def keep_for_retry(
    solver: str, problem: Problem, refusal: InfeasibleError, folder: PrivateFolder | None = None
) -> None:
    """Keep the schedule within the smallest budget that the error of `registry.solve` names, if it has one.

    solver: by its name; another has its own. folder: on disk too; one that is full costs the copy alone.
    """
    if refusal.schedule is None:
        return
    key = _key(solver, problem.graph)
    _here[key] = refusal.schedule
    _here.move_to_end(key)
    while len(_here) > MOST:
        _here.popitem(last=False)  # the one kept longest ago
    if folder is not None:
        with suppress(MemplanError, OSError):
            document = schedule_to_document(problem.graph, refusal.schedule, machine=problem.machine)
            folder.write(f"{key}.json", document_bytes(document, Path("refused.json")))
            _trim(folder)


def kept_schedule(solver: str, problem: Problem, folder: PrivateFolder | None = None) -> Schedule | None:
    """Return the schedule that was kept for this solver and problem; None if none holds within the budget."""
    key = _key(solver, problem.graph)
    found = _here.get(key)
    if found is None and folder is not None:
        name = f"{key}.json"
        with suppress(MemplanError, ValueError, OSError):
            if (raw := folder.read(name)) is not None:
                document = parse_document(raw, Path(name))
                found = schedule_from_document(document, problem.graph, name).schedule
    if found is None:
        return None
    with suppress(InputError):
        restriction = restrict(problem)
        # Raises if the schedule breaks a rule or the budget of this problem.
        start_figures(restriction.problem, restriction.restricted(found))
        return found
    return None


def _trim(folder: PrivateFolder) -> None:
    place = folder.existing()
    paths = () if place is None else place.glob("*.json")
    files = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[MOST:]:
        path.unlink(missing_ok=True)


def _key(solver: str, graph: Graph) -> str:
    """Return a hash of the solver, the operations and what they use, without times and workspaces."""
    operations, tensors = graph.operations, graph.tensors
    digest = blake2b(digest_size=16)
    for edges in (operations.reads, operations.writes, operations.mutates):
        digest.update(edges.start.tobytes())
        digest.update(edges.columns.tobytes())
    # No times: measured anew, they differ in each process.
    for column in (tensors.bytes, tensors.kind, operations.phase, operations.recompute, operations.random):
        digest.update(column.tobytes())
    variants = {o: [mode.name for mode in modes] for o, modes in sorted(operations.modes.items())}
    names = [*tensors.name, *operations.name]
    digest.update(repr((solver, names, list(graph.results), sorted(operations.comm), variants)).encode())
    return digest.hexdigest()
