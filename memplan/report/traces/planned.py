"""The trace of a schedule: queues, why each step runs, who reads what was copied, bytes of each memory.

It is one iteration of the steady state. Bytes change in list order, and are drawn at the time when the
compute queue passes the step (report/memory_timeline.py): changes back and forth at one time are in the
trace as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ...graphs.arrays import Floats, Ints
from ...graphs.graph import Graph, Phase
from ...graphs.units import format_bytes
from ...planner.schedule.schedule import DEFAULT_MODE, Verb
from ...planner.simulator.timeline import NOTHING, Timeline, timeline
from ..curves import by_memory
from ..memory_timeline import passed
from ..subject import Subject, cause_index, cause_words, queue_index, queue_words
from ..tensor_outcomes import recomputed_runs
from .events import Counter, Group, Slice
from .readers import readings

Details = dict[str, str | int | float]

MOST_NAMED = 8
"""Number of readers in the next iteration that are named; the others are counted."""


def planned(subject: Subject) -> Group:
    """Return the group of planned slices and counters. Raises InvalidScheduleError."""
    graph, schedule = subject.graph, subject.schedule
    line = timeline(graph, schedule, budget=subject.budget, machine=subject.machine)
    early = max(0.0, -float(line.start.min(initial=0.0)))  # copies of this iteration begin in the one before
    at = _nanoseconds(passed(line) + early)
    counters = [_counter(name, at, bytes_) for name, bytes_ in by_memory(subject).items()]
    if subject.budget is not None:
        counters.append(Counter("budget", [0, int(at[-1])], [subject.budget] * 2))
    return Group(f"planned: {graph.name}", _tracks(subject, line, early), counters)


def _counter(name: str, at: Ints, bytes_: Ints) -> Counter:
    changes = np.append([True], np.diff(bytes_) != 0)[: len(bytes_)]
    return Counter(name, at[:-1][changes].tolist(), bytes_[changes].tolist())


def _tracks(subject: Subject, line: Timeline, early: float) -> Mapping[str, list[Slice]]:
    """Return the slices of the queues that have something to do."""
    graph, schedule, memories = subject.graph, subject.schedule, subject.memories
    words, causes = queue_words(memories), cause_words(memories)
    start, end = _nanoseconds(line.start + early), _nanoseconds(line.end + early)
    steps, recomputed = list(schedule.rows()), recomputed_runs(schedule)
    names = [
        (graph.operations if verb == Verb.COMPUTE else graph.tensors).name[target]
        for verb, target, _where in steps
    ]
    readers = [
        name if verb == Verb.COMPUTE else f"{Verb(verb).word} {name}"
        for name, (verb, _target, _where) in zip(names, steps, strict=True)
    ]
    leads: defaultdict[int, list[int]] = defaultdict(list)
    follows: defaultdict[int, list[int]] = defaultdict(list)
    later: defaultdict[int, list[str]] = defaultdict(list)
    # A step may name a copy twice, as read and as changed: one arrow.
    for arrow, (transfer, reader, over) in enumerate(dict.fromkeys(readings(graph, schedule)), 1):
        if over:
            later[transfer].append(readers[reader])
        else:
            leads[transfer].append(arrow)
            follows[reader].append(arrow)
    tracks: dict[str, list[Slice]] = {name: [] for name in words}
    for step in np.flatnonzero(line.queue != NOTHING).tolist():
        verb, target, where = steps[step]
        details: Details = {"step": step}
        if verb == Verb.COMPUTE:
            details |= _operation(graph, target, where, bool(recomputed[step]))
        else:
            details |= _copy(graph, target, later[step])
        if (cause := line.cause.item(step)) != NOTHING:
            details |= {
                "waited_seconds": line.idle.item(step),
                "waited_for": causes[cause_index(cause, memories)],
            }
        track = tracks[words[queue_index(line.queue.item(step), memories)]]
        begun = max(start.item(step), track[-1].end if track else 0)  # rounding may not overlap
        ended = max(end.item(step), begun)
        track.append(
            Slice(
                name=names[step],
                start=begun,
                end=ended,
                details=details,
                leads=leads[step],
                follows=follows[step],
            )
        )
    return {name: track for name, track in tracks.items() if track}


def _operation(graph: Graph, operation: int, mode: int, recomputed: bool) -> Details:
    phase = Phase(graph.operations.phase.item(operation))
    details: Details = {
        "why": "recomputed" if recomputed else "update" if phase == Phase.UPDATE else "first run",
        "phase": phase.word,
        "seconds": graph.seconds(operation, mode),
        "workspace": graph.workspace(operation, mode),
    }
    if (layer := graph.operations.layer[operation]) is not None:
        details["layer"] = layer
    if mode != DEFAULT_MODE:
        details["mode"] = graph.operations.modes[operation][mode - 1].name
    return details


def _copy(graph: Graph, tensor: int, later: list[str]) -> Details:
    size = graph.tensors.bytes.item(tensor)
    details: Details = {"bytes": size, "size": format_bytes(size)}
    if later:
        more = f", {len(later) - MOST_NAMED} more" if len(later) > MOST_NAMED else ""
        details["read_next_iteration"] = ", ".join(later[:MOST_NAMED]) + more
    return details


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)
