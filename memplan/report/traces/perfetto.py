"""A trace in Perfetto's format: a protobuf message Trace, which is a row of TracePackets.

Field numbers are those of protos/perfetto/trace/trace_packet.proto, track_event/track_event.proto,
track_descriptor.proto, counter_descriptor.proto, process_descriptor.proto and debug_annotation.proto of
Perfetto 59 (https://github.com/google/perfetto); the bytes are protobuf's wire format
(https://protobuf.dev/programming-guides/encoding). Twenty fields are all that is needed, so no library is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .events import Counter, Group, Slice, Trace

_SEQUENCE = 1
"""TracePacket.trusted_packet_sequence_id: one writer."""

_BEGIN, _END, _COUNTER = 1, 2, 4
"""TrackEvent.Type."""

_EXPLICIT = 3
"""TrackDescriptor.ChildTracksOrdering."""

_SIZE_BYTES = 3
"""CounterDescriptor.Unit."""

_AXIS = "bytes"
"""CounterDescriptor.y_axis_share_key: counters of a group with the same one are drawn to one scale."""


def perfetto(trace: Trace) -> bytes:
    """Return the trace for https://ui.perfetto.dev, and for SQL by its trace processor."""
    return b"".join(_bytes(1, packet) for packet in _packets(trace))  # Trace.packet


def _packets(trace: Trace) -> Iterator[bytes]:
    track = 0
    for process, group in enumerate(trace, 1):
        track = parent = track + 1
        yield _group(parent, process, group)
        for rank, counter in enumerate(group.counters):
            track += 1
            yield _track(track, parent, counter.name, rank, _COUNTER_DESCRIPTOR)
            yield from _counts(track, counter)
        for rank, (name, slices) in enumerate(group.tracks.items(), len(group.counters)):
            track += 1
            yield _track(track, parent, name, rank)
            for slice_ in slices:
                yield from _slice(track, slice_)


def _group(track: int, process: int, group: Group) -> bytes:
    """Return a TracePacket with a TrackDescriptor: uuid 1, process 3, child_ordering 11."""
    descriptor = _int(1, process) + _text(6, group.name)  # ProcessDescriptor: pid, process_name
    return _bytes(60, _int(1, track) + _bytes(3, descriptor) + _int(11, _EXPLICIT))


def _track(track: int, parent: int, name: str, rank: int, kind: bytes = b"") -> bytes:
    """Return a TracePacket with a track's TrackDescriptor.

    Fields: uuid 1, name 2, parent_uuid 5, counter 8, sibling_order_rank 12.
    """
    return _bytes(60, _int(1, track) + _text(2, name) + _int(5, parent) + kind + _int(12, rank))


def _counts(track: int, counter: Counter) -> Iterator[bytes]:
    """Yield TrackEvents of a counter: counter_value 30."""
    for at, value in zip(counter.at, counter.bytes, strict=True):
        yield _event(at, track, _COUNTER, _int(30, value))


def _slice(track: int, slice_: Slice) -> Iterator[bytes]:
    """Yield the TrackEvents of a slice.

    Fields: debug_annotations 4, name 23, flow_ids 47, terminating_flow_ids 48.
    """
    parts = [
        _text(23, slice_.name),
        *(_bytes(4, _detail(name, value)) for name, value in slice_.details.items()),
        *(_fixed(47, arrow) for arrow in slice_.leads),
        *(_fixed(48, arrow) for arrow in slice_.follows),
    ]
    yield _event(slice_.start, track, _BEGIN, b"".join(parts))
    yield _event(slice_.end, track, _END)


def _event(at: int, track: int, kind: int, rest: bytes = b"") -> bytes:
    """Return a TracePacket: timestamp 8, track_event 11 (type 9, track_uuid 11)."""
    return _int(8, at) + _int(10, _SEQUENCE) + _bytes(11, _int(9, kind) + _int(11, track) + rest)


def _detail(name: str, value: str | int | float) -> bytes:
    """Return a DebugAnnotation: int_value 4, double_value 5, string_value 6, name 10."""
    if isinstance(value, str):
        return _text(10, name) + _text(6, value)
    if isinstance(value, int):
        return _text(10, name) + _int(4, value)
    # Field 5 with wire type 1: eight bytes.
    return _text(10, name) + _varint(5 << 3 | 1) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    """Encode seven bits per byte, the lowest first. value: not below 0."""
    if value < 128:
        return bytes((value,))
    parts = bytearray()
    while value >= 128:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _int(field: int, value: int) -> bytes:
    # A field's key is its number and the wire type: 0 a varint, 1 eight bytes, 2 a length with bytes.
    return _varint(field << 3) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode())


_COUNTER_DESCRIPTOR = _bytes(8, _int(3, _SIZE_BYTES) + _text(7, _AXIS))
"""CounterDescriptor: unit 3, y_axis_share_key 7."""
