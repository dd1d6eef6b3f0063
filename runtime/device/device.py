"""What the runtime asks of the device that computes.

A `Device` does at once what it is told, as the CPU does. On a `StreamDevice` computations and copies are only
queued: each stream runs what it was given in order, beside the others and beside the threads of the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from ..program.program import Operation, Program, Target


class Event(Protocol):
    """A place in a stream. One that was never recorded is passed already."""

    def record(self) -> None:
        """Behind what the current stream has been given."""
        ...

    def synchronize(self) -> None:
        """The calling thread waits."""
        ...


class Stream(Protocol):
    def wait_event(self, event: Event) -> None:
        """What the stream is given from now on waits for where the event was recorded last."""
        ...

    def record_event(self) -> Event: ...


class Stamp(Protocol):
    """A moment of which a device tells how far it is from others."""

    def query(self) -> bool:
        """Whether it has come."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds to a later one; both have come."""
        ...


class Now:
    """The moment at which it was made."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Now) -> float:
        return 1000 * (end_event.seconds - self.seconds)


class Device(ABC):
    """torch: where tensors lie. block_bytes: what the allocator hands out whole multiples of.

    reads_host: calls take tensors in host memory.
    """

    block_bytes = 1
    reads_host = False

    def __init__(self, device: torch.device) -> None:
        self.torch = device

    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def free_bytes(self) -> int | None:
        """What a process can have of its memory now; None where that is the host's."""

    @abstractmethod
    def cache_bytes(self) -> int | None:
        """The last cache before memory; None where the machine does not tell."""

    # ── computations ────────────────────────────────────────────────────────────────────────────────

    def launched(self, program: Program, operation: Operation, workspace: int) -> Target:
        """What generated code calls in the place of the operation's target."""
        return operation.call.target

    def adopted(self, residents: Sequence[Tensor]) -> Sequence[Tensor]:
        """The same tensors, on the device. Where one is not, PyTorch tells when it is used."""
        return residents

    @abstractmethod
    def synchronize(self) -> None:
        """Until all that was queued has ended."""

    @abstractmethod
    def seconds(self, call: Callable[[], object]) -> float:
        """How long one call takes; freeing its result belongs to it."""

    def stamp(self) -> Stamp:
        """When the current stream of the calling thread comes to here."""
        return Now()

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────

    def rounded(self, size: int) -> int:
        """As the allocator counts it."""
        return -(-size // self.block_bytes) * self.block_bytes

    def room(self, size: int) -> Tensor:
        """Memory, byte by byte, of no content."""
        return torch.empty(size, dtype=torch.uint8, device=self.torch)

    def host_memory(self, size: int) -> Tensor | None:
        """Memory of the host that copies to and from the device are fast with; None where any is."""
        return None

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Bytes, one of the two on the device; queued, where the other is its `host_memory`."""
        target.copy_(source, non_blocking=True)

    def moment(self) -> Event | None:
        """Passed once what the current stream was given has ended; None where it has already."""
        return None

    # ── random numbers ──────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def generator_state(self) -> Tensor: ...

    @abstractmethod
    def set_generator_state(self, state: Tensor) -> None: ...


class StreamDevice(Device):
    """Its allocator counts."""

    block_bytes = 512

    @abstractmethod
    def stream(self) -> Stream:
        """A new one."""

    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    def current_stream(self) -> Stream:
        """Of the calling thread."""

    @abstractmethod
    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """What the calling thread computes and copies there goes to the stream."""

    def moment(self) -> Event:
        return self.current_stream().record_event()

    @abstractmethod
    def allocated_bytes(self) -> int:
        """By tensors, now."""

    @abstractmethod
    def peak_bytes(self) -> int:
        """The most since `reset_peak`."""

    @abstractmethod
    def requested_bytes(self) -> int:
        """Of them what was asked for: the allocator hands out whole blocks, at times larger ones."""

    @abstractmethod
    def requested_peak_bytes(self) -> int:
        """The most since `reset_peak`."""

    @abstractmethod
    def reset_peak(self) -> None: ...
