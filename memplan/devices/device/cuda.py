"""A CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from ...torch_support.torch_profilers import drop_product_workspaces, grow_segments
from . import card
from .device import Event, PinError, Result, Stamp, Stream, StreamDevice, Unpin

WARM_UP_SECONDS = 0.2


class Cuda(StreamDevice):
    captures = True
    collectives = "nccl"

    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch)

    def capability(self) -> str:
        return "{}.{}".format(*torch.cuda.get_device_capability(self.torch))

    def unique_name(self) -> str:
        return card.unique_name(self.torch)

    def surroundings(self) -> dict[str, Any]:
        return card.surroundings(self.torch)

    def clock_rate(self) -> int | None:
        return card.clock_rate(self.torch)

    def free_bytes(self) -> int:
        """Return the free bytes after PyTorch's cache is emptied, without what CUDA takes itself."""
        self.release_unused()
        free, _total = torch.cuda.mem_get_info(self.torch)
        return int(free)

    def cache_bytes(self) -> int:
        properties: Any = torch.cuda.get_device_properties(self.torch)
        return properties.L2_cache_size

    def expect_weights(self) -> None:
        grow_segments()  # segments keep the kind that they were made as

    def constant_bytes(self) -> int:
        """Measure the bytes by a product of each sort, once nothing is kept.

        `CUBLAS_WORKSPACE_CONFIG` says how much is kept.
        """
        self.synchronize()
        drop_product_workspaces()
        start = self.allocated_bytes()
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(64, 64, dtype=dtype, device=self.torch)
            torch.addmm(x[0], x @ x, x)
            del x  # what is left is the libraries'
        return self.allocated_bytes() - start

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    def warm_up(self) -> None:
        """Multiply matrices for `WARM_UP_SECONDS`: an idle device begins at a low clock."""
        x = torch.ones(1024, 1024, device=self.torch)
        end = perf_counter() + WARM_UP_SECONDS
        while perf_counter() < end:
            for _ in range(16):
                torch.mm(x, x)
            # Else the thread would queue products for long after the end.
            self.synchronize()

    def fill(self, memory: Tensor) -> None:
        memory.zero_()

    def stamp(self) -> Stamp:
        stamp = torch.cuda.Event(enable_timing=True)
        stamp.record(torch.cuda.current_stream(self.torch))
        return stamp

    def host_memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")

    def arena(self, size: int) -> None:
        """Let segments grow and shrink from now on, in pages: so hardly any memory is free between
        tensors.

        It returns None: CUDA's allocator decides the addresses of what kernels allocate.
        """
        grow_segments()

    def pin(self, memory: Tensor) -> Unpin:
        runtime: Any = torch.cuda.cudart()
        with torch.cuda.device(self.torch):
            fault = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
            if not int(fault):
                return partial(runtime.cudaHostUnregister, memory.data_ptr())
            with suppress(RuntimeError):  # CUDA tells a fault a second time, with the next kernel
                torch.zeros(1, device=self.torch).add_(1)
        said = runtime.cudaGetErrorString(fault)
        raise PinError(f"CUDA can't pin {memory.nbytes:,} bytes of host memory: {said}")

    def generator_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.torch)

    def set_generator_state(self, state: Tensor) -> None:
        torch.cuda.set_rng_state(state, self.torch)

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────

    def stream(self) -> Stream:
        return cast(Stream, torch.cuda.Stream(self.torch))

    def event(self) -> Event:
        return cast(Event, torch.cuda.Event(blocking=True))  # else a thread that waits spins on a processor

    def moment(self) -> Event:
        event: Any = self.event()
        event.record(torch.cuda.current_stream(self.torch))  # by default the current device's stream
        return event

    def current_stream(self) -> Stream:
        return cast(Stream, torch.cuda.current_stream(self.torch))

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(cast(Any, stream))

    # ── graphs ──────────────────────────────────────────────────────────────────────────────────────

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def captured(
        self, run: Callable[[], Result], generators: Sequence[torch.Generator], pool: Any
    ) -> Callable[[], Result]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            # The default generator alone is registered by itself.
            graph.register_generator_state(generator)
        # Threads of the user may use CUDA meanwhile, a data loader's that pins memory for instance.
        with torch.cuda.device(self.torch), torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):
            results = run()

        def replay() -> Result:
            graph.replay()
            return results

        return replay

    # ── what the allocator counts ───────────────────────────────────────────────────────────────────

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch)

    def reserved_peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self.torch)

    def requested_bytes(self) -> int:
        return torch.cuda.memory_stats(self.torch).get("requested_bytes.all.current", 0)

    def requested_peak_bytes(self) -> int:
        return torch.cuda.memory_stats(self.torch).get("requested_bytes.all.peak", 0)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch)

    def release_unused(self) -> None:
        torch.cuda.empty_cache()
