"""The CPU as the device: a call has ended when it returns, memory is the host's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, thread_time

import torch
from torch import Tensor

from .device import Device, Result, Timed


class Cpu(Device):
    reads_host = True

    def name(self) -> str:
        return "cpu"

    def free_bytes(self) -> int | None:
        return None

    def cache_bytes(self) -> int | None:
        try:
            # 0 and 1 are the first level's, for data and code; 2 the second's, 3 the third's.
            text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text()
        except OSError:
            return None
        return 1024 * int(text.strip().removesuffix("K"))

    def synchronize(self) -> None:
        """Do nothing: nothing is queued."""

    def clock(self) -> Callable[[], float]:
        """Return the clock of computations: with one thread what the processor gave it, the same on an idle
        machine, right on a busy one.
        """
        return thread_time if torch.get_num_threads() == 1 else perf_counter

    def timed(self, calls: Sequence[Callable[[], object]]) -> Timed:
        clock = self.clock()
        start = clock()
        for call in calls:
            call()
        return Timed((clock() - start) / len(calls))

    def once(self, call: Callable[[], Result]) -> tuple[Result, float]:
        clock = self.clock()
        start = clock()
        result = call()
        return result, clock() - start

    def generator_state(self) -> Tensor:
        return torch.get_rng_state()

    def set_generator_state(self, state: Tensor) -> None:
        torch.set_rng_state(state)
