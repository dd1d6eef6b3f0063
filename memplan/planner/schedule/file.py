"""plan-schedule/1 and 2: a schedule on disk, with the figures and the solver it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...graphs.collector import collector_off
from ...graphs.errors import InputError
from ...graphs.files.documents import read_document, write_document
from ...graphs.files.fields import Row, check_fields, indices, mapping, sequence, size, text
from ...graphs.files.files import graph_digest
from ...graphs.files.kinds import check_format
from ...graphs.files.machine import machine_from_document, machine_to_document
from ...graphs.graph import Graph
from ...graphs.machine import Machine, Memory
from ..device_memory import DeviceMemory
from .schedule import DEFAULT_MODE, Initial, Schedule, ScheduleStep, Verb

FORMAT = "plan-schedule/1"
SHARDED_FORMAT = "plan-schedule/2"
"""The version of schedules of graphs of ranks that communicate; all others have version 1."""

_REQUIRED = ("format", "graph", "steps")
_OPTIONAL = ("budget", "machine", "solver", "predicted", "initial", "addresses", "loop")
_WORDS = tuple(verb.word for verb in Verb)
_VERBS = dict(zip(_WORDS, Verb, strict=True))
_DEFAULT = DEFAULT_MODE, int(Memory.DEVICE), int(Memory.HOST), int(Memory.DEVICE)
"""The `where` of a step that names none, by verb."""
# Looking up a member of an Enum takes as long as the rest of a step.
_COMPUTE = int(Verb.COMPUTE)
_SHARDED_VERBS = {"gather": Verb.PREFETCH, "scatter": Verb.OFFLOAD}
"""The words of transfers of spread tensors."""
_PEERS = "peers"
_BOTH = "both"
"""The word of `initial` for the device and the host; for any other memories it is their names with a +."""


class Addresses(NamedTuple):
    """Addresses of the device's copies. arena: bytes. offsets: bytes, one per copy (planner/addresses)."""

    arena: int
    offsets: tuple[int, ...]


class LoopStatement(NamedTuple):
    """Budget and predicted peak of the whole training loop that a schedule is of."""

    limit: DeviceMemory
    peak: DeviceMemory


@dataclass(frozen=True)
class ScheduleFile:
    """The content of a schedule file, with names resolved against its graph.

    graph_sha256: of the graph it was made for. solver, predicted: as written, not checked.
    loop: what the training loop has besides, if it has anything.
    """

    schedule: Schedule
    graph_name: str
    graph_sha256: str
    budget: int | None = None
    machine: Machine | None = None
    solver: Mapping[str, Any] = field(default_factory=dict[str, Any])
    predicted: Mapping[str, Any] = field(default_factory=dict[str, Any])
    addresses: Addresses | None = None
    loop: LoopStatement | None = None


@collector_off()
def load_schedule(path: str | Path, graph: Graph) -> ScheduleFile:
    """Read a plan-schedule/1. Raises InputError: one line with the file, the place and the fault."""
    path = Path(path)
    return schedule_from_document(read_document(path), graph, str(path))


def schedule_from_document(document: object, graph: Graph, where: str) -> ScheduleFile:
    """Return the schedule that a document holds. where: the file, for the InputError that names the fault."""
    try:
        row = mapping(document, "a schedule")
        # First: fields of another version would be reported as unknown.
        check_format(row, SHARDED_FORMAT if graph.communicates else FORMAT)
        check_fields(row, _REQUIRED, _OPTIONAL)
        made_for = mapping(row["graph"], "graph")
        check_fields(made_for, ("name", "sha256"), ())
        machine = None if row.get("machine") is None else machine_from_document(row["machine"])
        names = _names(machine, graph)
        return ScheduleFile(
            schedule=Schedule.of(
                _steps(sequence(row["steps"], "steps"), graph, names), _initial(row, graph, names)
            ),
            graph_name=text(made_for["name"], "graph.name"),
            graph_sha256=text(made_for["sha256"], "graph.sha256"),
            budget=None if row.get("budget") is None else size(row["budget"], "budget"),
            machine=machine,
            solver=mapping(row.get("solver") or {}, "solver"),
            predicted=mapping(row.get("predicted") or {}, "predicted"),
            addresses=_addresses(row.get("addresses")),
            loop=_loop(row.get("loop")),
        )
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def save_schedule(
    path: str | Path,
    graph: Graph,
    schedule: Schedule,
    *,
    budget: int | None = None,
    machine: Machine | None = None,
    solver: Mapping[str, Any] | None = None,
    predicted: Mapping[str, Any] | None = None,
    addresses: Addresses | None = None,
    loop: LoopStatement | None = None,
) -> None:
    """Write a plan-schedule/1, whole or not at all. machine: it names the memories, or the graph's."""
    document = schedule_to_document(
        graph,
        schedule,
        budget=budget,
        machine=machine,
        solver=solver,
        predicted=predicted,
        addresses=addresses,
        loop=loop,
    )
    write_document(document, Path(path))


@collector_off()
def schedule_to_document(
    graph: Graph,
    schedule: Schedule,
    *,
    budget: int | None = None,
    machine: Machine | None = None,
    solver: Mapping[str, Any] | None = None,
    predicted: Mapping[str, Any] | None = None,
    addresses: Addresses | None = None,
    loop: LoopStatement | None = None,
) -> dict[str, Any]:
    """Return the document that schedule_from_document reads back."""
    names = _names(machine, graph)
    document = {
        "format": SHARDED_FORMAT if graph.communicates else FORMAT,
        "graph": {"name": graph.name, "sha256": graph_digest(graph)},
        "budget": budget,
        "machine": None if machine is None else machine_to_document(machine),
        "solver": dict(solver or {}),
        "predicted": dict(predicted or {}),
        "initial": _initial_row(schedule.initial, graph, names),
        "steps": [_step_row(step, graph, names) for step in schedule],
        "addresses": None
        if addresses is None
        else {"arena": addresses.arena, "offsets": list(addresses.offsets)},
        "loop": None if loop is None else {name: asdict(part) for name, part in loop._asdict().items()},
    }
    return {key: value for key, value in document.items() if value is not None}


def _addresses(row: Any) -> Addresses | None:
    if row is None:
        return None
    row = mapping(row, "addresses")
    check_fields(row, ("arena", "offsets"), ())
    offsets = sequence(row["offsets"], "addresses.offsets")
    return Addresses(
        size(row["arena"], "addresses.arena"),
        tuple(size(offset, f"addresses.offsets[{place}]") for place, offset in enumerate(offsets)),
    )


def _loop(row: Any) -> LoopStatement | None:
    if row is None:
        return None
    row = mapping(row, "loop")
    check_fields(row, LoopStatement._fields, ())
    return LoopStatement(_device_memory(row["limit"], "loop.limit"), _device_memory(row["peak"], "loop.peak"))


def _device_memory(row: Any, where: str) -> DeviceMemory:
    row = mapping(row, where)
    parts = ("plan", "states", "gradients", "other")
    check_fields(row, (*parts, "owner"), ())
    owner = text(row["owner"], f"{where}.owner") if row["owner"] != "" else ""
    plan, states, gradients, other = (size(row[part], f"{where}.{part}") for part in parts)
    return DeviceMemory(plan, states, gradients, other, owner)


def _names(machine: Machine | None, graph: Graph) -> tuple[str, ...]:
    """Return the names of the memories in a row."""
    return (machine or graph.machine or Machine()).hierarchy.names


def _targets(verb: Verb, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the memories that a step may name.

    An offload copies to one from the memory above, a prefetch from the memory below.
    """
    return {Verb.DELETE: names, Verb.OFFLOAD: names[1:], Verb.PREFETCH: names[:-1]}[verb]


def _steps(rows: list[Any], graph: Graph, names: tuple[str, ...]) -> list[ScheduleStep]:
    steps: list[ScheduleStep] = []
    for position, row in enumerate(rows):
        try:
            steps.append(_step(row, graph, names))
        except ValueError as error:
            raise ValueError(f"steps[{position}] ({row!r}): {error}") from None
    return steps


def _step(row: Any, graph: Graph, names: tuple[str, ...]) -> ScheduleStep:
    parts = sequence(row, "a step")
    if not 2 <= len(parts) <= 3 or not all(isinstance(part, str) for part in parts):
        raise ValueError("a step is a verb, a name and at most one more word")
    verb = _VERBS.get(parts[0])
    if verb is None and graph.tensors.spread and parts[0] in _SHARDED_VERBS:
        return _sharded_step(parts, graph)
    if verb is None:
        known = (*_VERBS, *(_SHARDED_VERBS if graph.tensors.spread else ()))
        raise ValueError(f"unknown verb {parts[0]!r}: one of {', '.join(known)}")
    index = graph.operation_index if verb == Verb.COMPUTE else graph.tensor_index
    if parts[1] not in index:
        what = "operation" if verb == Verb.COMPUTE else "tensor"
        raise ValueError(f"the graph has no {what} {parts[1]!r}")
    target = index[parts[1]]
    if verb == Verb.COMPUTE:
        return ScheduleStep(verb, target, DEFAULT_MODE if len(parts) == 2 else _mode(graph, target, parts[2]))
    if len(parts) == 2:
        return ScheduleStep(verb, target, _DEFAULT[verb])
    if target in graph.tensors.spread and verb == Verb.DELETE and parts[2] == _PEERS:
        return ScheduleStep(verb, target, Memory.PEERS)
    if parts[2] not in (allowed := _targets(verb, names)):
        raise ValueError(f"{parts[0]} has no memory {parts[2]!r}: one of {', '.join(allowed)}")
    return ScheduleStep(verb, target, names.index(parts[2]))


def _sharded_step(parts: list[Any], graph: Graph) -> ScheduleStep:
    """Parse a gather or a scatter."""
    x = graph.tensor_index.get(parts[1])
    if x is None:
        raise ValueError(f"the graph has no tensor {parts[1]!r}")
    if len(parts) > 2:
        raise ValueError(f"{parts[0]} takes a tensor alone")
    if x not in graph.tensors.spread:
        raise ValueError(f"{parts[0]}: {parts[1]} is not spread over the ranks")
    verb = _SHARDED_VERBS[parts[0]]
    return ScheduleStep(verb, x, _DEFAULT[verb])


def _mode(graph: Graph, operation: int, name: str) -> int:
    modes = [mode.name for mode in graph.operations.modes.get(operation, ())]
    if name not in modes:
        raise ValueError(f"the operation has no mode {name!r}: it has {', '.join(modes) or 'none'}")
    # 0 is the operation without a mode (DEFAULT_MODE).
    return modes.index(name) + 1


def _step_row(step: ScheduleStep, graph: Graph, names: tuple[str, ...]) -> list[str]:
    verb, target, where = step
    if verb == _COMPUTE:
        row = [_WORDS[verb], graph.operations.name[target]]
        return row if where == DEFAULT_MODE else [*row, graph.operations.modes[target][where - 1].name]
    row = [_WORDS[verb], graph.tensors.name[target]]
    if target in graph.tensors.spread:
        if verb != Verb.DELETE and where == _DEFAULT[verb]:
            row[0] = "gather" if verb == Verb.PREFETCH else "scatter"
            return row
        if verb == Verb.DELETE and where == Memory.PEERS:
            return [*row, _PEERS]
    return row if where == _DEFAULT[verb] else [*row, names[where]]


def _initial(row: Row, graph: Graph, names: tuple[str, ...]) -> Initial:
    initial = mapping(row.get("initial") or {}, "initial")
    groups: list[tuple[tuple[int, ...], list[int]]] = []
    for key, tensors in initial.items():
        # The device and the host, under whatever names.
        words = names[: Memory.DISK] if key == _BOTH else tuple(str(key).split("+"))
        memories = tuple(names.index(word) for word in words if word in names)
        if graph.tensors.spread and words in ((_PEERS,), (names[0], _PEERS)):
            # One word: the peers alone; two: the device as well.
            memories = (Memory.DEVICE, Memory.PEERS)[-len(words) :]
            groups.append((memories, indices(tensors, f"initial.{key}", graph.tensor_index)))
            if other := [x for x in groups[-1][1] if x not in graph.tensors.spread]:
                raise ValueError(
                    f"initial.{key}: {graph.tensors.name[other[0]]} is not spread over the ranks"
                )
            continue
        # Unknown, repeated or unordered memories, or the device alone, which is where all others start.
        if len(memories) < len(words) or list(memories) != sorted({*memories}) or memories == (0,):
            # Its message lists the words that are known.
            check_fields({key: None}, (), (*names[1:], _BOTH))
        groups.append((memories, indices(tensors, f"initial.{key}", graph.tensor_index)))
    return Initial(groups=groups)


def _initial_row(initial: Initial, graph: Graph, names: tuple[str, ...]) -> dict[str, list[str]]:
    both, spread = (Memory.DEVICE, Memory.HOST), graph.tensors.spread
    # Written even when empty, so that files of one kind have the same fields.
    usual = dict.fromkeys(((Memory.HOST,), (Memory.DISK,), both), frozenset[int]())
    rows = {
        _BOTH if memories == both else "+".join(names[memory] for memory in memories): tensors - spread
        for memories, tensors in {**usual, **dict(initial.groups)}.items()
    }
    if spread:
        # Spread tensors use the host's index for their peers.
        rows[_PEERS] = initial.at(Memory.PEERS) & spread
        rows[f"{names[0]}+{_PEERS}"] = initial.at(*both) & spread
    return {word: [graph.tensors.name[tensor] for tensor in sorted(row)] for word, row in rows.items()}
