"""The state of dispatch in which traced calls run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def as_traced(device: torch.device) -> Generator[None]:
    """Calls go straight to the kernels, as they did below autograd when the model was traced.

    Nothing is recorded for a backward, nor cast. Gradient mode stays on: some kernels ask for it (an LSTM on
    the CPU keeps its workspace only then).
    """
    below_autograd: Any = torch._C._AutoDispatchBelowAutograd()
    with torch.enable_grad(), torch.autocast(device.type, enabled=False), below_autograd:
        yield
