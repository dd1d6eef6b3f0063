"""Parameters of tests that run on a CUDA device, where there is one."""

import pytest
import torch

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
