"""A CUDA device."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from .device import Event, Stamp, Stream, StreamDevice


class Cuda(StreamDevice):
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch)

    def free_bytes(self) -> int:
        """Beside CUDA's own."""
        torch.cuda.empty_cache()
        free, _total = torch.cuda.mem_get_info(self.torch)
        return int(free)

    def cache_bytes(self) -> int:
        properties: Any = torch.cuda.get_device_properties(self.torch)
        return properties.L2_cache_size

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    def seconds(self, call: Callable[[], object]) -> float:
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def stamp(self) -> Stamp:
        stamp = torch.cuda.Event(enable_timing=True)
        stamp.record(torch.cuda.current_stream(self.torch))
        return stamp

    def host_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def generator_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.torch)

    def set_generator_state(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.torch)

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────

    def stream(self) -> Stream:
        return cast(Stream, torch.cuda.Stream(self.torch))

    def event(self) -> Event:
        """A thread that waits for it sleeps, and leaves the processor to the others."""
        return cast(Event, torch.cuda.Event(blocking=True))

    def current_stream(self) -> Stream:
        return cast(Stream, torch.cuda.current_stream(self.torch))

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(cast(Any, stream))

    # ── what the allocator counts ───────────────────────────────────────────────────────────────────

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch)

    def requested_bytes(self) -> int:
        return torch.cuda.memory_stats(self.torch).get("requested_bytes.all.current", 0)

    def requested_peak_bytes(self) -> int:
        return torch.cuda.memory_stats(self.torch).get("requested_bytes.all.peak", 0)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch)
