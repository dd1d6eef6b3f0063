"""Tests that run on the CPU (`make test-scripts`) and, where there is one, on a CUDA device: `-m cuda`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from on_devices import CUDA

if torch.cuda.is_available():  # read once, at the first matrix product
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.scripts), CUDA])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device's name; PyTorch repeats its results bit by bit meanwhile, and computes in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # where tests run beside, two threads that wait for each other take forever
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield request.param
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
