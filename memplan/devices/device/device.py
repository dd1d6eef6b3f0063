"""Interface of the device that computes, as the runtime uses it.

A `Device` runs each request at once, as the CPU does. On a `StreamDevice` computations and copies are only
queued: each stream runs its requests in order, concurrently with other streams and with the host's threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ...graphs.errors import MemplanError
from ...program.program import Operation, Program, Target
from .planned_arena import PlannedRooms

Result = TypeVar("Result")


class Event(Protocol):
    """A point in a stream. An event that was never recorded counts as passed."""

    def record(self) -> None:
        """Record the event after all that has been queued on the current stream."""
        ...

    def synchronize(self) -> None:
        """Make the calling thread wait for the event."""
        ...


class Stream(Protocol):
    def wait_event(self, event: Event) -> None:
        """Make all later work of the stream wait for the point at which the event was last recorded."""
        ...

    def record_event(self) -> Event: ...


class Stamp(Protocol):
    """A moment in a device's time; it can be compared with others."""

    def query(self) -> bool:
        """Tell whether the moment has come."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds to a later event; both must have passed."""
        ...


Unpin = Callable[[], None]


class PinError(MemplanError):
    """Error: no more memory of the host can be pinned."""


class Timed(NamedTuple):
    """Time of one call, in seconds.

    seconds: how long the device computes.
    launch: how long the issuing thread is busy, if that is a separate time.
    """

    seconds: float
    launch: float = 0.0


class Now:
    """The moment at which the object was made."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Now) -> float:
        return 1000 * (end_event.seconds - self.seconds)


class Device(ABC):
    """A device that runs each request at once.

    torch: PyTorch's device, on which tensors lie.
    block_bytes: size of which the allocator hands out whole multiples.
    reads_host: calls take tensors in host memory.
    captures: what the device is given can be captured, and launched as one; see `captured`.
    collectives: the backend of torch.distributed that moves its tensors between processes.
    """

    block_bytes = 1
    reads_host = False
    captures = False
    collectives = "gloo"

    def __init__(self, device: torch.device) -> None:
        self.torch = device

    @abstractmethod
    def name(self) -> str: ...

    def capability(self) -> str | None:
        """Return the compute capability, "8.6"; None of a device that has none."""
        return None

    def unique_name(self) -> str | None:
        """Return a name that no other device of any machine has; None of one that processes share."""
        return None

    def surroundings(self) -> dict[str, Any]:
        """Return what kernels and times depend on in addition to the program: see card.py."""
        return {}

    def clock_rate(self) -> int | None:
        """Return the clock at which the device computes now, in Hz; None if it does not say."""
        return None

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Return the bytes of device memory available to a process now; None if that memory is the host's."""

    @abstractmethod
    def cache_bytes(self) -> int | None:
        """Return the bytes of the last cache before memory; None if the machine does not say."""

    def expect_weights(self) -> None:  # noqa: B027
        """Prepare the allocator for a model that is about to move to the device."""

    def constant_bytes(self) -> int:
        """Return the bytes of device memory that libraries keep as long as the process computes.

        cuBLAS keeps its workspace, for instance: one for each thread that has computed a product, so another
        for the thread in which eager PyTorch runs backward. Measuring it frees all of them, and allocates
        that of the calling thread, which is there from then on.
        """
        return 0

    # ── computations ────────────────────────────────────────────────────────────────────────────────

    def launched(self, program: Program, operation: Operation, workspace: int) -> Target:
        """Return the function that generated code calls instead of the operation's target."""
        return operation.call.target

    def adopted(self, residents: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the tensors on the device.

        PyTorch reports a tensor that is not on the device when it is used.
        """
        return residents

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all that was queued has ended."""

    @abstractmethod
    def timed(self, calls: Sequence[Callable[[], object]]) -> Timed:
        """Time the calls and return the mean per call; freeing its result is part of a call."""

    def warm_up(self) -> None:  # noqa: B027
        """Let the device compute until its clock is as fast as it is in training."""

    def once(self, call: Callable[[], Result]) -> tuple[Result, float]:
        """Run the call once, and return its result and its seconds by the device's clock."""
        self.synchronize()
        start = self.stamp()
        result = call()
        end = self.stamp()
        self.synchronize()
        return result, start.elapsed_time(end) / 1000

    def stamp(self) -> Stamp:
        """Return a stamp of the time at which the current stream of the calling thread comes to this
        point.
        """
        return Now()

    # ── graphs ──────────────────────────────────────────────────────────────────────────────────────

    def pool(self) -> Any:
        """Return a new pool of memory for `captured`."""
        return None

    def captured(
        self, run: Callable[[], Result], generators: Sequence[torch.Generator], pool: Any
    ) -> Callable[[], Result]:
        """Capture what the function gives to the device, without running it there.

        Returns a function that runs it. Its results are the same tensors each time, with other values.

        generators: those of the device that the function draws from, in addition to the device's own.
        pool: where the function's memory comes from, and stays.
        """
        raise NotImplementedError

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────

    def rounded(self, size: int) -> int:
        """Return `size` as the allocator counts it: rounded up to whole blocks."""
        return -(-size // self.block_bytes) * self.block_bytes

    def release_unused(self) -> None:  # noqa: B027
        """Give memory that the allocator keeps, and no tensor has, back to the device."""

    def room(self, size: int) -> Tensor:
        """Allocate memory on the device, as bytes without content."""
        return torch.empty(size, dtype=torch.uint8, device=self.torch)

    def arena(self, size: int) -> PlannedRooms | None:
        """Allocate one block of the device's memory, of at least `size` bytes, for planned addresses.

        What `expect` announces is placed in it. It exists until nobody holds it nor anything in it. None if
        the device can't.
        """
        return None

    def host_memory(self, size: int) -> Tensor | None:
        """Allocate host memory with which copies to and from the device are fast.

        Returns None if they are with any.
        """
        return None

    def pin(self, memory: Tensor) -> Unpin | None:
        """Pin host memory, so that copies from and to it are as with `host_memory`.

        Returns a function that ends this; None if copies are so with any memory. Raises PinError if the
        system refuses.
        """
        return None

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy bytes, from or to the device or on it; queued, unless one is on the host and not pinned
        there.
        """
        target.copy_(source, non_blocking=True)

    # ── random numbers ──────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def generator_state(self) -> Tensor: ...

    @abstractmethod
    def set_generator_state(self, state: Tensor) -> None: ...


MOST_FILLS = 256
CACHE_BYTES = 32 * 2**20
"""Bytes of the cache if the machine does not say; half of what fills at least."""


class StreamDevice(Device):
    """A device that queues its work on streams, and whose allocator counts."""

    block_bytes = 512  # of PyTorch's caching allocator for CUDA

    @abstractmethod
    def fill(self, memory: Tensor) -> None:
        """Queue a write of all bytes of the memory."""

    def timed(self, calls: Sequence[Callable[[], object]]) -> Timed:
        """Time the calls between two stamps, with the device kept busy until all are launched.

        So between its stamps the device waits for no launch:

            the thread    fill … fill, start, call, call, … call, end
            the device          fill … … … fill ▏start  call  call … call  end▕

        What fills is twice as large as the last cache, so no call finds there what it reads, and takes longer
        than its launch. A call that waits for the device itself counts with the wait, and not as launched.
        """
        memory, fills = self.room(2 * max(self.cache_bytes() or 0, CACHE_BYTES)), 1
        while True:
            self.synchronize()
            for _ in range(fills):
                self.fill(memory)
            start, begun = self.stamp(), perf_counter()
            for call in calls:
                call()
            # If the start has passed by now, the device may have waited for launches.
            launch, late = perf_counter() - begun, start.query()
            end = self.stamp()
            self.synchronize()
            if not late or fills >= MOST_FILLS:
                seconds = start.elapsed_time(end) / 1000
                return Timed(seconds / len(calls), 0.0 if late else launch / len(calls))
            fills *= 2

    @abstractmethod
    def stream(self) -> Stream:
        """Create a stream."""

    @abstractmethod
    def event(self) -> Event:
        """Create an event. A thread that waits for it sleeps."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """Return the current stream of the calling thread."""

    @abstractmethod
    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """Return a context in which the calling thread's computations and copies go to the stream."""

    def moment(self) -> Event:
        """Return an event that passes when all that the current stream was given has ended."""
        event = self.event()
        event.record()
        return event

    @abstractmethod
    def allocated_bytes(self) -> int:
        """Return the bytes that tensors have now."""

    @abstractmethod
    def peak_bytes(self) -> int:
        """Return the most bytes of tensors since `reset_peak`."""

    @abstractmethod
    def reserved_peak_bytes(self) -> int:
        """Return the most bytes that the process had of the device since `reset_peak`: tensors, and what
        is between.
        """

    @abstractmethod
    def requested_bytes(self) -> int:
        """Return the bytes that were requested, of those allocated: the allocator hands out whole blocks, at
        times larger ones.
        """

    @abstractmethod
    def requested_peak_bytes(self) -> int:
        """Return the most requested bytes since `reset_peak`."""

    @abstractmethod
    def reset_peak(self) -> None: ...
