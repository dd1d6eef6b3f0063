"""A trace as Chrome's JSON, which chrome://tracing and Perfetto read.

By "Trace Event Format" (D. Sinclair, N. Duca): M names, X slices, C counters, s and f the ends of arrows;
times in microseconds. It has no common axis for counters and no unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .events import Group, Slice, Trace

Event = dict[str, Any]


def chrome(trace: Trace) -> bytes:
    events = [event for number, group in enumerate(trace, 1) for event in _group(number, group)]
    document = {"traceEvents": events, "displayTimeUnit": "ms"}
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _group(number: int, group: Group) -> Iterator[Event]:
    yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": group.name}}
    for counter in group.counters:
        for at, value in zip(counter.at, counter.bytes, strict=True):
            yield {
                "ph": "C",
                "pid": number,
                "name": counter.name,
                "ts": at / 1000,
                "args": {"bytes": value},
            }
    for thread, (name, slices) in enumerate(group.tracks.items(), 1):
        place = {"pid": number, "tid": thread}
        yield {"ph": "M", **place, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", **place, "name": "thread_sort_index", "args": {"sort_index": thread}}
        for slice_ in slices:
            yield from _slice(place, slice_)


def _slice(place: dict[str, int], slice_: Slice) -> Iterator[Event]:
    start = slice_.start / 1000
    took = (slice_.end - slice_.start) / 1000
    yield {"ph": "X", **place, "name": slice_.name, "ts": start, "dur": took, "args": dict(slice_.details)}
    arrow = {**place, "name": "read", "cat": "read", "ts": start}
    for number in slice_.leads:
        yield {"ph": "s", "id": number, **arrow}
    for number in slice_.follows:
        # bp e: the arrow ends at the slice around its time, not at the next one.
        yield {"ph": "f", "bp": "e", "id": number, **arrow}
