"""PyTorch's CUDA memory snapshots (`torch.cuda.memory._dump_snapshot`): measured lifetimes as a graph.

A snapshot says what was allocated and freed, when and from which line; it does not say which operation reads
what. So the graph has one operation per allocation, in the order of the trace, and

    writes   the block
    reads    the blocks that are freed before the next allocation, so that they live to then, and a tensor of
             no bytes of the operation before, so that no schedule changes the order
    time     until the next allocation, by the trace's clock
    layer    the innermost line of Python outside torch

None may be recomputed: how a block is computed is not known. So the order is fixed and, without transfers,
the baseline is the only schedule. Its curve is the measured one: after each allocation the bytes of all
blocks whose free has not been requested. They are counted as `torch.cuda.memory_allocated` counts them, in
the bytes that the allocator hands out, not in the bytes requested. A trace has the bytes requested. For a
block in the segments the size is the segments'; for others the requested bytes are rounded up to multiples of
512, as the allocator does. (A block whose rest is too small to be split off is larger than that; for a freed
one this is unknown.)

Blocks that were there before the trace began are written by a first operation, or are buffers if they outlive
it. The first operation reads these buffers: nothing says that they could be elsewhere.

Reference: the docstring of torch.cuda.memory._snapshot, PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..graphs.draft import Draft
from ..graphs.files.fields import Row, mapping, sequence
from ..graphs.graph import Graph, Kind
from .formats import Options
from .nodes import whole
from .pickles import text_of, unpickled

FREES = ("free_requested", "free_completed")
OTHERS = {"segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "oom", "user_defined"}
MICROSECOND = 1e-6
BLOCK = 512
"""Granularity of the allocator, bytes."""


@dataclass
class Event:
    """An allocation, or, without a tensor, the time before the first one.

    start: microseconds.
    layer: the line of Python that allocates.
    freed: tensors whose lifetime ends before the next allocation.
    """

    tensor: int | None
    start: int
    layer: str | None = None
    freed: list[int] = field(default_factory=list[int])


def read(path: Path, options: Options) -> Graph:
    """Return the graph of one device's trace. Raises ValueError or InputError."""
    found = mapping(unpickled(path), "a snapshot")
    traces = sequence(found.get("device_traces"), "device_traces")
    segments = sequence(found.get("segments"), "segments")
    device = _device(traces, options.device)
    trace = [mapping(entry, "an entry of the trace") for entry in traces[device]]
    draft = Draft(path.name.partition(".")[0])
    own = [mapping(segment, "a segment") for segment in segments]
    own = [segment for segment in own if segment.get("device", 0) == device]
    blocks = dict(_blocks(own))
    # Of the allocations at one address only the last can be a block of the segments.
    last = {entry["addr"]: place for place, entry in enumerate(trace) if _is_allocation(entry)}
    life = _Life(draft)
    for place, entry in enumerate(trace):
        try:
            kept = _is_allocation(entry) and last[entry["addr"]] == place
            life.take(entry, blocks.get(entry["addr"]) if kept else None)
        except ValueError as error:
            raise ValueError(f"device {device}, entry {place}: {error}") from None
    life.outlived(blocks)
    reserved = sum(whole(segment.get("total_size"), "total_size of a segment") for segment in own)
    source = {"kind": "snapshot", "file": path.name, "device": device, "reserved_bytes": reserved}
    return life.graph(whole(trace[-1].get("time_us", 0), "time_us of the last entry"), source)


class _Life:
    """The lifetimes of blocks, built from the trace's entries in order.

    before: tensors allocated before the trace and freed in it.
    live: the tensor at each address.
    gone: addresses whose free was requested and is not completed.
    kept: buffers, allocated before the trace, that outlive it.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.before: list[int] = []
        self.live: dict[int, int] = {}
        self.gone: set[int] = set()
        self.kept: list[int] = []
        self.events = [Event(None, 0)]

    def take(self, entry: Row, given: int | None) -> None:
        """Process an entry. given: the bytes that the allocator handed out, None if unknown."""
        action = entry.get("action")
        if action == "alloc":
            address, tensor = self._address(entry), self._tensor(entry, given)
            if address in self.live:
                raise ValueError(f"address {address:#x} is allocated twice: the trace lacks entries")
            self.live[address] = tensor
            self.gone.discard(address)
            self.events.append(Event(tensor, whole(entry.get("time_us", 0), "time_us"), _line(entry)))
        elif action in FREES:
            self._free(entry, requested=action == FREES[0])
        elif not isinstance(action, str) or action not in OTHERS:
            raise ValueError(f"the action {text_of(action)} is not known")

    def _free(self, entry: Row, *, requested: bool) -> None:
        address = self._address(entry)
        tensor = self.live.pop(address, None)
        # A completion without a request in the trace frees a block from before it; with one it adds nothing.
        if tensor is None and (requested or address not in self.gone):
            tensor = self._tensor(entry)
            self.before.append(tensor)
        if tensor is not None:
            self.events[-1].freed.append(tensor)
        if requested:
            self.gone.add(address)
        else:
            self.gone.discard(address)

    def outlived(self, blocks: Mapping[int, int]) -> None:
        """Add a buffer for each block in use at the end that was allocated before the trace began."""
        self.kept = [
            self.draft.tensor(f"kept{address:#x}", size, Kind.BUFFER)
            for address, size in blocks.items()
            if address not in self.live
        ]

    def graph(self, end: int, source: Row) -> Graph:
        ends = [event.start for event in self.events[2:]] + [end]
        seconds = [
            0.0,
            *(max(0, b - e.start) * MICROSECOND for e, b in zip(self.events[1:], ends, strict=False)),
        ]
        following: list[int] = []
        for place, event in enumerate(self.events):
            made = self.before if event.tensor is None else [event.tensor]
            kept = self.kept if event.tensor is None else []
            then = self.draft.tensor(f"then{place}", 0)
            self.draft.operation(
                "before" if event.tensor is None else f"alloc{place}",
                time=seconds[place],
                reads=[*following, *kept, *(tensor for tensor in event.freed if tensor not in made)],
                writes=[*made, then],
                recompute=False,
                layer=event.layer,
            )
            following = [then]
        return self.draft.graph(sorted(self.live.values()), source=source)

    def _address(self, entry: Row) -> int:
        return whole(entry.get("addr"), "addr")

    def _tensor(self, entry: Row, given: int | None = None) -> int:
        size = given or max(1, -(-whole(entry.get("size"), "size") // BLOCK)) * BLOCK
        return self.draft.tensor(f"block{len(self.before) + len(self.events)}", size)


def _blocks(segments: list[Row]) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each block that is in use when the snapshot is taken."""
    for segment in segments:
        address = whole(segment.get("address"), "address of a segment")
        for block in sequence(segment.get("blocks"), "blocks of a segment"):
            row = mapping(block, "a block")
            size = whole(row.get("size"), "size of a block")
            if row.get("state") == "active_allocated":
                yield address, size
            # Blocks of a segment lie one after another.
            address += size


def _is_allocation(entry: Row) -> bool:
    return entry.get("action") == "alloc" and isinstance(entry.get("addr"), int)


def _device(traces: list[Any], wanted: int | None) -> int:
    there = [device for device, trace in enumerate(traces) if sequence(trace, "the trace of a device")]
    if not there:
        raise ValueError(
            "has no trace: call torch.cuda.memory._record_memory_history() before what is measured"
        )
    if wanted is None and len(there) > 1:
        raise ValueError(f"has traces of the devices {', '.join(map(str, there))}: choose by --device")
    if wanted is not None and wanted not in there:
        raise ValueError(f"has no trace of device {wanted}, but of {', '.join(map(str, there))}")
    return there[0] if wanted is None else wanted


def _line(entry: Row) -> str | None:
    """Return the innermost frame in Python outside torch, like `train.py:12 forward`."""
    for frame in sequence(entry.get("frames") or [], "frames"):
        row = mapping(frame, "a frame")
        file, name, line = row.get("filename"), row.get("name"), row.get("line")
        if not (isinstance(file, str) and isinstance(name, str) and isinstance(line, int)):
            raise ValueError("a frame has no filename, name and line")
        path = PurePosixPath(file)
        if path.suffix == ".py" and "torch" not in path.parts:
            return f"{path.name}:{line} {name}"
    return None
