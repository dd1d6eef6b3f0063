"""PyTorch's CUDA memory snapshots (`torch.cuda.memory._dump_snapshot`) as recordings.

A trace may have lost its oldest entries (`max_entries`), and a block whose free it lacks is then allocated
anew at its address: the old one ends there. A snapshot without a trace has the blocks of its moment alone.

Reference: the docstring of torch.cuda.memory._snapshot, PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...graphs.files.fields import Row, mapping, sequence
from ..nodes import whole
from ..snapshot import BLOCK
from .recording import Block, Frame, Recording

_REQUEST, _COMPLETION = "free_requested", "free_completed"


def recording_of(document: Any, wanted: int | None) -> Recording:
    """Return one device's recording: by default of the one with the most memory. Raises ValueError."""
    found = mapping(document, "a snapshot")
    segments = [mapping(one, "a segment") for one in sequence(found.get("segments"), "segments")]
    traces = sequence(found.get("device_traces") or [], "device_traces")
    held: dict[int, int] = {}
    for segment in segments:
        device = whole(segment.get("device", 0), "device of a segment")
        held[device] = held.get(device, 0) + whole(segment.get("total_size"), "total_size of a segment")
    devices = sorted(held.keys() | {number for number, trace in enumerate(traces) if trace})
    if not devices:
        raise ValueError("has no memory: neither a segment nor a trace")
    if wanted is not None and wanted not in devices:
        raise ValueError(f"has nothing of device {wanted}, but of {', '.join(map(str, devices))}")
    device = max(devices, key=lambda one: (held.get(one, 0), -one)) if wanted is None else wanted
    trace = sequence(traces[device] if device < len(traces) else [], "the trace of a device")
    own = [segment for segment in segments if segment.get("device", 0) == device]
    return _recording(f"cuda:{device}", trace, own, held.get(device))


def _recording(name: str, trace: list[Any], segments: list[Row], reserved: int | None) -> Recording:
    there = {address: row for segment in segments for address, row in _blocks(segment)}
    blocks, live, oom = list[Block](), dict[int, Block](), None
    requested = set[int]()
    for place, entry in enumerate(trace):
        row = mapping(entry, "an entry of the trace")
        action = row.get("action")
        if action == "alloc":
            address = whole(row.get("addr"), "addr")
            if (lost := live.pop(address, None)) is not None:  # the trace lacks its free
                blocks.append(lost._replace(end=place))
            live[address] = Block(_rounded(row), place, None, _frames(row))
        elif action in (_REQUEST, _COMPLETION):
            address = whole(row.get("addr"), "addr")
            if action == _COMPLETION and address in requested:
                requested.discard(address)
                continue
            if action == _REQUEST:
                requested.add(address)
            block = live.pop(address, None) or Block(_rounded(row), -1, None, _frames(row))
            blocks.append(block._replace(end=place))
        elif action == "oom":
            oom = whole(row.get("size", 0), "size")
    blocks += live.values()
    for address, row in there.items():
        if address not in live:
            blocks.append(Block(whole(row.get("size"), "size of a block"), -1, None, _frames(row)))
    return Recording(name, blocks, reserved, oom)


def _blocks(segment: Row) -> list[tuple[int, Row]]:
    """Return address and row of each block of a segment that is in use."""
    address, found = whole(segment.get("address", 0), "address of a segment"), list[tuple[int, Row]]()
    for one in sequence(segment.get("blocks"), "blocks of a segment"):
        row = mapping(one, "a block")
        if row.get("state") == "active_allocated":
            found.append((address, row))
        address += whole(row.get("size"), "size of a block")
    return found


def _rounded(row: Row) -> int:
    return max(1, -(-whole(row.get("size"), "size") // BLOCK)) * BLOCK


def _frames(row: Row) -> tuple[Frame, ...]:
    """Return the frames of an entry, or of a block of older snapshots, which has a history."""
    frames: Any = row.get("frames")
    if not frames and row.get("history"):
        frames = mapping(sequence(row["history"], "history")[-1], "a history").get("frames")
    found = list[Frame]()
    for one in sequence(frames or [], "frames"):
        frame: Mapping[str, Any] = mapping(one, "a frame")
        file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        if not (isinstance(file, str) and isinstance(name, str) and isinstance(line, int)):
            raise ValueError("a frame has no filename, name and line")
        found.append(Frame("" if file == "??" else file, line, name))
    return tuple(found)
