"""The trace of what was measured: the same steps and tracks as the plan's, with both times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...planner.schedule.schedule import Verb
from ..subject import Subject, queue_index, queue_words
from .events import Counter, Group, Slice

Span = tuple[int, int, float, float]
"""Queue, step, seconds of its start and its end; a start may be before 0."""


def measured(subject: Subject, spans: Iterable[Span], peaks: Mapping[str, int]) -> Group:
    """Return the group of measured slices.

    spans: by queue, each in order.
    peaks: measured bytes by name. No curve of measured memory is known, so the peaks are drawn as lines.
    """
    graph, schedule = subject.graph, subject.schedule
    known, steps = list(spans), list(schedule.rows())
    early = min((start for _queue, _step, start, _end in known), default=0.0)
    words = queue_words(subject.memories)
    tracks: dict[str, list[Slice]] = {name: [] for name in words}
    for queue, step, start, end in known:
        verb, target, where = steps[step]
        details: dict[str, str | int | float] = {"step": step, "seconds": end - start}
        named = graph.tensors
        if verb == Verb.COMPUTE:
            named, details["planned_seconds"] = graph.operations, graph.seconds(target, where)
        else:
            details["bytes"] = graph.tensors.bytes.item(target)
        track = tracks[words[queue_index(queue, subject.memories)]]
        begun = max(round((start - early) * 1e9), track[-1].end if track else 0)  # rounding may not overlap
        track.append(Slice(named.name[target], begun, max(round((end - early) * 1e9), begun), details))
    last = max((row[-1].end for row in tracks.values() if row), default=0)
    lines = [Counter(name, [0, last], [size, size]) for name, size in peaks.items()]
    return Group(f"measured: {graph.name}", {name: row for name, row in tracks.items() if row}, lines)
