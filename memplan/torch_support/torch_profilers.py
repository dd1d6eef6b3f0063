"""Profilers, and the allocator's records."""

from __future__ import annotations

import os
from functools import cache, wraps
from typing import Any
from weakref import WeakSet

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler, _profiler_enabled
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
)

from ..graphs.collector import objects_of


def profiler_is_on() -> bool:
    """Tell whether PyTorch's one profiler records, for whichever thread."""
    return _profiler_enabled() or bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def profiler_is_prepared() -> bool:
    """Return whether a profiler of the user's warms up, between `prepare_trace` and `start_trace`."""
    return any(
        getattr(each, "entered", False) and getattr(each, "kineto_results", None) is None
        for each in _profilers()
    )


@cache
def _profilers() -> WeakSet[Any]:
    """Return the profilers that have been prepared: PyTorch keeps no list of them.

    From the first call on each notes itself; those of before are looked for among all objects, once.
    """
    kind = torch.autograd.profiler.profile
    prepare = kind._prepare_trace
    noted: WeakSet[Any] = WeakSet()

    @wraps(prepare)
    def prepare_and_note(self: Any) -> None:
        noted.add(self)  # first: a signal's handler may raise once the trace is prepared
        prepare(self)

    kind._prepare_trace = prepare_and_note
    noted.update(objects_of(kind))
    return noted


def record_allocations() -> None:
    """Record the CPU allocator's events, no operations: about 10 µs a block. `torch.profiler` can't."""
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    enable: Any = _enable_profiler  # its stub lacks the third argument, the scopes to record
    _prepare_profiler(config, {ProfilerActivity.CPU})
    enable(config, {ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})


def recorded_allocations() -> Any:
    """Stop recording, and return the record; its `experimental_event_tree()` holds the events."""
    return _disable_profiler()


def grow_segments() -> None:
    """Let CUDA's allocator use expandable segments, unless the environment has settings for it."""
    if not (os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def drop_product_workspaces() -> None:
    """Free cuBLAS' memory, until the next product."""
    torch._C._cuda_clearCublasWorkspaces()
