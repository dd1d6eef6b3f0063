"""The state of dispatch in which traced calls run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from .torch_autograd import below_autograd


@contextmanager
def without_autocast(device: torch.device) -> Generator[None]:
    """Switch autocast off around calls that have their dtypes already: it would cast their arguments once
    more.
    """
    with torch.autocast(device.type, enabled=False):
        yield


@contextmanager
def autocast_cache(enabled: bool) -> Generator[None]:
    """Switch autocast's cache on or off, and leave it empty.

    With the cache autocast casts a weight once for all its uses, without it once for each; `make_fx` sets the
    latter, eager the former. The cache is empty afterwards: it would hand the trace's tensors to others.
    """
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(enabled)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


@contextmanager
def as_traced(device: torch.device) -> Generator[None]:
    """Let calls go straight to the kernels, as they did below autograd when the model was traced.

    Nothing is recorded for a backward, nor cast. Gradient mode stays on: some kernels ask for it (an LSTM on
    the CPU keeps its workspace only then).
    """
    with torch.enable_grad(), without_autocast(device), below_autograd():
        yield
