"""A device made of threads: the hazards of CUDA on a machine without one.

Its memory is an arena on the host, handed out by the rules of CUDA's allocator. A tensor of the device is a
tensor in the arena; when Python lets go of its storage the memory is free at once, whatever the streams still
have to do with it. Computations and copies are queued on streams, threads that run late at random: a call
returns when its results have memory, not content. What they hold does not keep memory from being freed.

Whatever is used too early or too late is seen. Memory is poisoned (NaN, -1) when it is handed out and when it
is given back, in the order of the computing stream, which fails where a copy of it has not ended then. A copy
poisons its target when it starts, and fails where its source changes or its target is written before it ends;
a computation fails where one of its inputs changes, or where a result has another form than the trace told.

    device = SimulatedDevice(seed=1)
    step = PlannedStep(iteration, program, schedule, Terms(graph, budget, machine, device=device))
    outcome = step.run(inputs)
    device.synchronize()            # before the results are read
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event as Flag
from threading import Lock
from time import perf_counter, sleep
from typing import Any, TypeVar, cast

import numpy as np
import torch
from memplan.devices.device.device import Event, Stamp, Stream, StreamDevice, Unpin
from memplan.devices.storage.copies import raw
from memplan.devices.storage.offloaded import Offloaded
from memplan.planner.addresses.caching_allocator import MIB, CachingAllocator, Chunk, NoRoomError
from memplan.program.program import Operation, Program, Target
from torch import Tensor

from .arena import Arena
from .clock import Costs
from .launch import CPU, Launch
from .pinned import POISON, PinnedMemory
from .threads import Delays, DeviceFaultError, Streams, ThreadEvent, ThreadStamp, ThreadStream, Trouble

_T = TypeVar("_T")


class Faults:
    """Errors by choice: at the n-th allocation, copy, launch or pinned block from now on."""

    def __init__(self) -> None:
        self._planned: dict[str, tuple[int, BaseException]] = {}
        self.seen: dict[str, int] = {}

    def plan(self, kind: str, number: int, error: BaseException) -> None:
        self._planned[kind] = (self.seen.get(kind, 0) + number, error)

    def pass_by(self, kind: str) -> None:
        """Raises what is planned for here."""
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if kind in self._planned and self.seen[kind] == self._planned[kind][0]:
            raise self._planned.pop(kind)[1]  # who keeps it keeps the frames that it went through


class SimulatedDevice(StreamDevice):
    """seed: of the delays. pinned_limit: of host memory, in bytes. constant: bytes that it keeps for itself
    from the first computation on, as cuBLAS does. launching: seconds that the thread takes to launch one.
    costs: of operations and copies, in time that is counted; without them stamps are of the clock."""

    def __init__(
        self,
        seed: int = 0,
        capacity: int = 256 * MIB,
        pinned_limit: int | None = None,
        delays: Callable[[str], Delays] = Delays,
        constant: int = 0,
        launching: float = 0.0,
        costs: Costs | None = None,
    ) -> None:
        super().__init__(CPU)
        self.costs = costs
        self.allocator = CachingAllocator(capacity)
        self.pinned = PinnedMemory(pinned_limit)
        self.faults = Faults()
        self._seed, self._delays = seed, delays
        self._constant, self._kept = constant, list[Tensor]()
        self._launching = launching
        self._bytes = np.empty(2 * capacity, np.uint8)
        self._memory = torch.from_numpy(self._bytes)
        self._lock, self._gone = Lock(), deque[tuple[Chunk, Arena | None]]()
        self._arena: Callable[[], Arena | None] = lambda: None
        self._left = deque[int]()
        self._copying: dict[int, list[Flag]] = {}
        self._trouble = Trouble()
        self._streams: list[ThreadStream] = []
        self._current = Streams(self._trouble, self._streams)
        self.stream()
        weakref.finalize(self, _close, self._streams)

    def name(self) -> str:
        return "simulated"

    def free_bytes(self) -> int:
        return self.allocator.capacity - self.allocator.allocated

    def constant_bytes(self) -> int:
        self._kept.clear()
        start = self.allocated_bytes()
        self.launch(lambda: None)
        return self.allocated_bytes() - start

    def cache_bytes(self) -> None:
        return None

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────

    def stream(self) -> Stream:
        number = len(self._streams)
        made = ThreadStream(number, self._delays(f"{self._seed} {number}"), self._trouble, self._current)
        self._streams.append(made)
        return cast(Stream, made)

    def event(self) -> Event:
        return cast(Event, ThreadEvent(self._current))

    def current_stream(self) -> Stream:
        return cast(Stream, self._current.current)

    @contextmanager
    def on(self, stream: Stream) -> Generator[None]:
        before = self._current.current
        self._current.current = cast(ThreadStream, stream)
        try:
            yield
        finally:
            self._current.current = before

    def synchronize(self) -> None:
        for stream in self._streams:
            stream.synchronize()

    def fill(self, memory: Tensor) -> None:
        start = self._address(memory)
        whole = self._bytes[start : start + memory.nbytes]
        self._current.current.give(lambda: whole.fill(POISON))

    def stamp(self) -> Stamp:
        stream = self._current.current
        return ThreadStamp(stream, perf_counter if self.costs is None else lambda: stream.seconds)

    # ── memory ──────────────────────────────────────────────────────────────────────────────────────

    def room(self, size: int) -> Tensor:
        self._trouble.tell()
        self.faults.pass_by("allocation")
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        stream = self._current.current
        with self._lock:
            self._sweep()
            arena = self._arena()
            chunk = None if arena is None else arena.place(size, stream.number)
            if chunk is None:
                chunk, arena = self._allocated(size, stream), None
            stream.give(self._poisoning(chunk))
        view = self._bytes[chunk.start : chunk.start + size]
        weakref.finalize(view, self._free, chunk, arena).atexit = False
        return torch.from_numpy(view)

    def arena(self, size: int) -> Arena:
        """Raises OutOfMemoryError."""
        arena = self._arena()
        if arena is None or arena.size < size:
            with self._lock:
                self._sweep()
                arena = self._within(
                    size, lambda: Arena(self._memory.data_ptr(), self.allocator, size, self._left.append)
                )
            self._arena = weakref.ref(arena)
        return arena

    def host_memory(self, size: int) -> Tensor:
        self.faults.pass_by("pinned")
        return self.pinned.take(size)

    def pin(self, memory: Tensor) -> Unpin:
        self.faults.pass_by("pinned")
        return self.pinned.register(memory)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Queued on the device and between it and pinned memory; with other memory the thread waits."""
        self._trouble.tell()
        self.faults.pass_by("copy")
        stream = self._current.current
        blocks = [None if self.has(end) else self.pinned.block_of(end) for end in (source, target)]
        one, other = (
            self.alias(end) if self.has(end) else end if block is None else block.first(end.nbytes)
            for end, block in zip((source, target), blocks, strict=True)
        )
        areas = [None if self.has(end) else self.pinned.area_of(end) for end in (source, target)]
        pinned = [place for place in (*blocks, *areas) if place is not None]
        for place in pinned:
            self.pinned.use(place)
        ended = Flag()
        for end in (source, target):
            if self.has(end):
                before = self._copying.get(self._address(end), [])
                self._copying[self._address(end)] = [*(copy for copy in before if not copy.is_set()), ended]

        def run() -> None:
            try:
                _copy(one, other, stream.delays.pause)
            finally:
                ended.set()
                for place in pinned:
                    self.pinned.used(place)

        costs, seconds = self.costs, None
        if costs is not None:
            upwards = self.has(target) and not self.has(source)
            between = self.has(target) != self.has(source)
            seconds = costs.of_copy(source.nbytes, upwards=upwards, pinned=bool(pinned)) if between else 0.0
        stream.give(run, seconds)
        if not (pinned or all(map(self.has, (source, target)))):
            stream.synchronize()

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor lies in the arena."""
        return 0 <= self._address(tensor) < len(self._bytes)

    def _address(self, tensor: Tensor) -> int:
        return tensor.untyped_storage().data_ptr() - self._memory.data_ptr()

    def allocated_bytes(self) -> int:
        with self._lock:
            self._sweep()
        return self.allocator.allocated

    def peak_bytes(self) -> int:
        return self.allocator.allocated_peak

    def reserved_peak_bytes(self) -> int:
        return self.allocator.reserved_peak

    def requested_bytes(self) -> int:
        with self._lock:
            self._sweep()
        return self.allocator.requested

    def requested_peak_bytes(self) -> int:
        return self.allocator.requested_peak

    def reset_peak(self) -> None:
        self.allocator.allocated_peak = self.allocator.allocated
        self.allocator.reserved_peak = self.allocator.reserved
        self.allocator.requested_peak = self.allocator.requested

    def _allocated(self, size: int, stream: ThreadStream) -> Chunk:
        return self._within(size, lambda: self.allocator.malloc(size, stream.number))

    def _within(self, size: int, allocate: Callable[[], _T]) -> _T:
        try:
            return allocate()
        except NoRoomError:
            raise torch.OutOfMemoryError(
                f"out of memory: tried to allocate {size:,} bytes; {self.allocator.allocated:,} of "
                f"{self.allocator.capacity:,} bytes are allocated, {self.allocator.reserved:,} reserved"
            ) from None

    def _free(self, chunk: Chunk, arena: Arena | None) -> None:
        """At any moment: the garbage collector may come in the midst of an allocation."""
        self._gone.append((chunk, arena))
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        while self._gone:
            chunk, arena = self._gone.popleft()
            copies = self._copying.pop(chunk.start, [])
            self._streams[chunk.stream].give(partial(_idle, copies))
            self._streams[chunk.stream].give(self._poisoning(chunk))
            if arena is None:
                self.allocator.free(chunk)
            else:
                arena.leave(chunk)
            del arena
        while self._left:
            self.allocator.release(self._left.popleft())

    def _poisoning(self, chunk: Chunk) -> Callable[[], None]:
        whole = self._bytes[chunk.start : chunk.start + chunk.size]
        return lambda: whole.fill(POISON)

    def alias(self, tensor: Tensor) -> Tensor:
        """The same memory, form and all; it does not keep it from being freed."""
        start, size = self._address(tensor), tensor.untyped_storage().nbytes()
        whole = torch.from_numpy(self._bytes[start : start + size]).untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())  # pyright: ignore

    # ── computations ────────────────────────────────────────────────────────────────────────────────

    def launched(self, program: Program, operation: Operation, workspace: int) -> Target:
        return Launch(self, program, operation, workspace)

    def adopted(self, residents: Sequence[Tensor]) -> Sequence[Tensor]:
        """Those that are elsewhere move, their objects stay."""
        moved: dict[int, Tensor] = {}
        for tensor in residents:
            if isinstance(tensor, Offloaded):
                continue
            storage = tensor.untyped_storage()
            if not storage.nbytes() or self.has(tensor):
                continue
            if storage.data_ptr() not in moved:
                room = moved[storage.data_ptr()] = self.room(storage.nbytes())
                self.copy(raw(tensor), room)
            whole, form = moved[storage.data_ptr()].untyped_storage(), tensor.detach()
            empty = torch.empty(0, dtype=form.dtype)
            tensor.data = empty.set_(whole, form.storage_offset(), form.shape, form.stride())  # pyright: ignore
        return residents

    def launch(self, work: Callable[[], None], operation: Operation | None = None) -> ThreadStream:
        """operation: that it is, for its cost."""
        self._trouble.tell()
        self.faults.pass_by("launch")
        if self._constant and not self._kept:
            self._kept.append(self.room(self._constant))
        stream = self._current.current
        if self._launching:
            sleep(self._launching)

        def late() -> None:
            stream.delays.pause()
            work()

        costs = self.costs
        stream.give(late, None if costs is None or operation is None else costs.of(operation))
        return stream

    def aliases(self, argument: Any, known: list[Tensor]) -> Any:
        """The argument with aliases for the device's tensors, which are added to `known`."""
        if isinstance(argument, Tensor):
            empty = not argument.untyped_storage().nbytes()
            if not empty and not self.has(argument):
                raise DeviceFaultError(f"a computation reads host memory: {tuple(argument.shape)}")
            known.append(argument if empty else self.alias(argument))
            return known[-1]
        if isinstance(argument, tuple | list):
            return type(argument)(self.aliases(part, known) for part in argument)
        if isinstance(argument, Mapping):
            return {name: self.aliases(part, known) for name, part in argument.items()}
        return argument

    # ── random numbers ──────────────────────────────────────────────────────────────────────────────

    def generator_state(self) -> Tensor:
        """The host's own: it draws when a computation is launched, as CUDA's generators count then."""
        return torch.get_rng_state()

    def set_generator_state(self, state: Tensor) -> None:
        torch.set_rng_state(state)


def _idle(copies: Sequence[Flag]) -> None:
    """Where a stream comes to the place at which memory was given back."""
    if not all(copy.is_set() for copy in copies):
        raise DeviceFaultError("memory was given back before a copy of it had ended")


def _copy(source: Tensor, target: Tensor, pause: Callable[[], None]) -> None:
    """Both ends must be the copy's alone from its start to its end."""
    pause()
    bits = source.clone()
    target.fill_(POISON)
    pause()
    if not bool((target == POISON).all()):
        raise DeviceFaultError("a copy's target was written before it ended")
    target.copy_(source)
    pause()
    if not torch.equal(source, bits):
        raise DeviceFaultError("a copy's source changed before it ended")
    if not torch.equal(target, bits):
        raise DeviceFaultError("a copy's target was written before it ended")


def _close(streams: list[ThreadStream]) -> None:
    for stream in streams:
        stream.close()
    for stream in streams:
        stream.join()
