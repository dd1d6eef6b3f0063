"""Traces say what the judge says: bytes at every moment, times, who reads what was copied.

Perfetto's are read with Perfetto's own definition of the format.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter as Bag
from collections.abc import Iterator
from itertools import groupby, pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from memplan.graphs.draft import Draft
from memplan.graphs.graph import Graph, Kind
from memplan.graphs.machine import Links, Machine, Memory
from memplan.planner.baseline import baseline
from memplan.planner.errors import InvalidScheduleError
from memplan.planner.report import Report
from memplan.planner.schedule.schedule import Schedule, Verb, compute, delete, offload, prefetch
from memplan.planner.simulator.simulate import Replay, simulate
from memplan.planner.simulator.timeline import NOTHING, timeline
from memplan.report.curves import table
from memplan.report.subject import Subject, queue_words
from memplan.report.traces.chrome import chrome
from memplan.report.traces.events import Group, Slice, Trace
from memplan.report.traces.perfetto import perfetto
from memplan.report.traces.planned import planned
from memplan.report.traces.readers import Reading, readings
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from strategies import random_case


class Judged(NamedTuple):
    subject: Subject
    replay: Replay


def judged(graph: Graph, schedule: Schedule, budget: int | None, machine: Machine | None) -> Judged:
    replay = simulate(graph, schedule, budget=budget, machine=machine)
    report = Report(replay.figures, baseline(graph))
    return Judged(Subject(graph, schedule, report, budget, machine), replay)


def cases(first: int, count: int) -> Iterator[Judged]:
    for seed in range(first, first + count):
        try:
            yield judged(*random_case(Random(seed)))
        except InvalidScheduleError:
            continue


class Decoded(NamedTuple):
    """Of a .pftrace: by name of the group and of the track."""

    slices: dict[tuple[str, str], list[tuple[str, int, int, dict[str, Any]]]]
    counters: dict[tuple[str, str], list[tuple[int, int]]]
    begins: Bag[int]
    ends: Bag[int]
    axes: set[tuple[int, str]]


def decoded(data: bytes) -> Decoded:
    """Every packet of it, and nothing that the format does not know."""
    trace = proto.Trace.FromString(data)
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == len(data)
    names: dict[int, tuple[str, str]] = {}
    found = Decoded({}, {}, Bag(), Bag(), set())
    open_: dict[int, tuple[str, int, dict[str, Any]]] = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in names
            if track.HasField("process"):
                names[track.uuid] = (track.process.process_name, "")
                assert track.child_ordering == proto.TrackDescriptor.EXPLICIT
                continue
            names[track.uuid] = (names[track.parent_uuid][0], track.name)
            if track.HasField("counter"):
                found.axes.add((track.counter.unit, track.counter.y_axis_share_key))
                found.counters[names[track.uuid]] = []
            else:
                found.slices[names[track.uuid]] = []
            continue
        assert packet.trusted_packet_sequence_id
        event = packet.track_event
        at, place = packet.timestamp, names[event.track_uuid]
        if event.type == proto.TrackEvent.TYPE_COUNTER:
            found.counters[place].append((at, event.counter_value))
        elif event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            details = {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}
            assert event.track_uuid not in open_
            open_[event.track_uuid] = event.name, at, details
            found.begins.update(event.flow_ids)
            found.ends.update(event.terminating_flow_ids)
        else:
            assert event.type == proto.TrackEvent.TYPE_SLICE_END
            name, begun, details = open_.pop(event.track_uuid)
            assert begun <= at
            found.slices[place].append((name, begun, at, details))
    assert not open_
    return found


@pytest.mark.scripts
@pytest.mark.parametrize("batch", range(2))
def test_a_trace_is_what_the_judge_says(batch: int) -> None:
    seen = copied = 0
    for subject, replay in cases(400 * batch, 400):
        graph, schedule = subject.graph, subject.schedule
        if not len(schedule):
            continue
        group = planned(subject)
        found = decoded(perfetto([group]))
        line = timeline(graph, schedule, budget=subject.budget, machine=subject.machine)
        for number, queue in enumerate(queue_words(subject.memories)):
            steps = np.flatnonzero(line.queue == number)
            slices = found.slices.get((group.name, queue), [])
            assert [details["step"] for _name, _start, _end, details in slices] == steps.tolist()
            busy = sum(end - start for _name, start, end, _details in slices) / 1e9
            assert busy == pytest.approx((line.end - line.start)[steps].sum(), abs=1e-8 * (len(steps) + 1))
            assert all(a[2] <= b[1] for a, b in pairwise(slices))
        _same_bytes(group, found, subject, replay)
        assert found.begins == found.ends
        assert set(found.begins.values()) <= {1}
        assert found.axes == {(proto.CounterDescriptor.UNIT_SIZE_BYTES, "bytes")}
        copied += len(found.begins)
        seen += 1
    assert seen > 50
    assert copied > 20


def _same_bytes(group: Group, found: Decoded, subject: Subject, replay: Replay) -> None:
    """The device's counter takes all values of the judge's curve, and has a step's while it runs;
    others are between what must be there and the judge's peaks."""
    figures, curve = replay.figures, replay.device_curve.tolist()
    counters = {name: values for (_group, name), values in found.counters.items()}
    for values in counters.values():
        assert all(a <= b for (a, _v), (b, _w) in pairwise(values))
    if any(curve):
        assert [value for _at, value in counters["device"]] == [value for value, _same in groupby(curve)]
        times = [at for at, _value in counters["device"]]
        for _name, start, end, details in found.slices.get((group.name, "compute"), []):
            if start < end:
                assert counters["device"][bisect_right(times, start) - 1][1] == curve[details["step"]]
    limits = (figures.peak, figures.host_peak, figures.disk_peak, figures.pinned_peak)
    rows = subject.copies()
    for word, memory in subject.ledgers.items():
        highest = max((value for _at, value in counters.get(word, [])), default=0)
        lowest = rows[memory].live().max(initial=0) if memory in rows else 0
        assert lowest <= highest <= limits[memory]
    if subject.budget is None:
        assert "budget" not in counters
    else:
        assert {value for _at, value in counters["budget"]} == {subject.budget}


@pytest.mark.parametrize("batch", range(2))
def test_arrows_are_all_that_is_read_of_what_was_copied(batch: int) -> None:
    """The same looked for from the reader: the last that wrote the copy before it, in the iteration or in the
    one before, is the transfer."""
    seen = 0
    for subject, _replay in cases(1000 + 400 * batch, 400):
        graph, schedule = subject.graph, subject.schedule
        rows = list(schedule.rows())
        wanted: set[Reading] = set()
        for reader, (verb, target, where) in enumerate(rows):
            for memory, x in _read(graph, verb, target, where):
                for ago in range(1, len(rows) + 1):
                    step = (reader - ago) % len(rows)
                    if _writes(graph, rows[step], memory, x):
                        if rows[step][0] > Verb.DELETE:
                            wanted.add(Reading(step, reader, ago > reader))
                        break
        found = set(readings(graph, schedule))
        assert {row for row in found if not row.next} == {row for row in wanted if not row.next}
        assert {row for row in wanted if row.next} <= {row for row in found if row.next}
        seen += len(wanted)
    assert seen > 50


def _read(graph: Graph, verb: int, target: int, where: int) -> Iterator[tuple[int, int]]:
    if verb == Verb.COMPUTE:
        operation = graph.operation(target)
        mode = operation.modes[where - 1] if where else None
        for x in (*operation.reads, *operation.mutates):
            on_host = mode is not None and (mode.on_host or x in mode.reads_host)
            yield (Memory.HOST if on_host else Memory.DEVICE), x
    elif verb == Verb.OFFLOAD:
        yield (Memory.DEVICE if where == Memory.HOST else Memory.HOST), target
    elif verb == Verb.PREFETCH:
        yield (Memory.HOST if where == Memory.DEVICE else Memory.DISK), target


def _writes(graph: Graph, row: tuple[int, int, int], memory: int, x: int) -> bool:
    verb, target, where = row
    if verb != Verb.COMPUTE:
        return (where, target) == (memory, x)
    operation = graph.operation(target)
    mode = operation.modes[where - 1] if where else None
    below = mode is not None and mode.on_host
    if x in operation.mutates and memory == (Memory.HOST if below else Memory.DEVICE):
        return True
    made = operation.writes if mode is None else mode.writes
    on_host = below or (mode is not None and x in mode.writes_host)
    return x in made and memory == (Memory.HOST if on_host else Memory.DEVICE)


def there_and_back() -> Subject:
    """x (4 bytes) is away while F2 makes y: F2 waits for the copy out, B for the copy back, which reads it.

    compute  F1F1....F2F2F2..B
    d2h          >>>>
    h2d                    <<
    """
    draft = Draft("there-and-back")
    x, y = draft.tensor("x", 4), draft.tensor("y", 4)
    draft.operation("F1", time=2, writes=[x])
    draft.operation("F2", time=3, writes=[y])
    draft.operation("B", time=1, reads=[x])
    steps = [compute(0), offload(0), delete(0), compute(1), delete(1), prefetch(0), compute(2)]
    schedule = Schedule.of([*steps, delete(0), delete(0, Memory.HOST)])
    machine = Machine(host_capacity=24, links=Links(d2h=2.0, h2d=4.0))
    return judged(draft.graph(), schedule, 4, machine).subject


def test_a_picture_as_chromes_json() -> None:
    document = json.loads(chrome([planned(there_and_back())]))
    rows = document["traceEvents"]
    slices = {row["name"]: row for row in rows if row["ph"] == "X" and row["tid"] == 1}
    assert {name: (row["ts"], row["dur"]) for name, row in slices.items()} == {
        "F1": (0, 2e6),
        "F2": (4e6, 3e6),
        "B": (8e6, 1e6),
    }
    assert slices["F2"]["args"]["waited_for"] == "a copy to the host"
    assert slices["F2"]["args"]["waited_seconds"] == 2
    assert slices["B"]["args"]["why"] == "first run"
    arrows = [(row["ph"], row["ts"]) for row in rows if row["ph"] in "sf"]
    assert sorted(arrows) == [("f", 7e6), ("f", 8e6), ("s", 2e6), ("s", 7e6)]
    names = [row["args"]["name"] for row in rows if row["name"] == "thread_name"]
    assert names == ["compute", "device to host", "host to device"]
    device = [
        (row["ts"], row["args"]["bytes"]) for row in rows if row["ph"] == "C" and row["name"] == "device"
    ]
    assert max(size for _at, size in device) == 4


def test_a_copy_that_the_next_iteration_copies_says_so() -> None:
    draft = Draft("out-and-back")
    w = draft.tensor("w", 4, kind=Kind.PARAMETER)
    draft.operation("F", time=2, reads=[w])
    steps = [offload(w), delete(w), prefetch(w), delete(w, Memory.HOST), compute(0)]
    machine = Machine(host_capacity=24, links=Links(d2h=2.0, h2d=4.0))
    trace = planned(judged(draft.graph(), Schedule.of(steps), None, machine).subject)
    (back,) = trace.tracks["host to device"]
    assert back.details["read_next_iteration"] == "offload w"


@pytest.mark.parametrize("batch", range(2))
def test_both_formats_say_the_same(batch: int) -> None:
    for subject, _replay in list(cases(2000 + 100 * batch, 100)):
        group = planned(subject)
        found = decoded(perfetto([group]))
        rows = json.loads(chrome([group]))["traceEvents"]
        slices = Bag((row["name"], round(row["ts"] * 1000)) for row in rows if row["ph"] == "X")
        assert slices == Bag((name, start) for row in found.slices.values() for name, start, *_rest in row)
        counts = Bag((row["name"], row["args"]["bytes"]) for row in rows if row["ph"] == "C")
        assert counts == Bag((name, v) for (_g, name), row in found.counters.items() for _at, v in row)
        assert Bag(row["id"] for row in rows if row["ph"] == "s") == found.begins


def test_numbers_of_any_size_and_any_text() -> None:
    details = {"small": 0, "large": 2**62, "part": 0.1, "text": "ü×∞"}
    trace: Trace = [Group("g", {"t": [Slice("ü", 2**40, 2**41, details, leads=[2**63], follows=[7])]}, [])]
    found = decoded(perfetto(trace))
    assert found.slices == {("g", "t"): [("ü", 2**40, 2**41, details)]}
    assert (found.begins, found.ends) == (Bag([2**63]), Bag([7]))


def test_the_table_has_a_row_a_step() -> None:
    subject = there_and_back()
    rows = [line.split(",") for line in table(subject).splitlines()]
    assert rows[0] == ["step", "seconds", "verb", "name", "device", "host", "pinned"]
    assert rows[1:5] == [
        ["0", "0", "compute", "F1", "4", "0", "0"],
        ["1", "2", "offload", "x", "4", "4", "4"],
        ["2", "2", "delete", "x", "4", "4", "4"],
        ["3", "4", "compute", "F2", "4", "4", "4"],
    ]
    assert len(rows) == 1 + len(subject.schedule)


def test_steps_that_take_no_queue_are_no_slices() -> None:
    subject = there_and_back()
    line = timeline(subject.graph, subject.schedule, budget=4, machine=subject.machine)
    tracks = planned(subject).tracks
    assert sum(map(len, tracks.values())) == (line.queue != NOTHING).sum()
