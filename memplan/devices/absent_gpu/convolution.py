"""The layout of a convolution's results on a GPU: channels last where its kernel takes that, else contiguous.

Rules of aten/src/ATen/native/Convolution.cpp and ConvUtils.h in PyTorch 2.13 with cuDNN 9:

    float64                        contiguous
    bfloat16 before 8.0            contiguous, unless depthwise: PyTorch's own kernels
    else                           channels last if the input or the weight is
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from .capability import Capability
from .devices import SHOWN
from .questions import Questions

_C: Any = torch._C
_BY_DIMENSIONS = {4: torch.channels_last, 5: torch.channels_last_3d}


class _OnGpu(NamedTuple):
    """Stands for the backend of a convolution on the GPU.

    channels_last: whether it has kernels for that layout.
    """

    channels_last: bool


@contextmanager
def cuda_convolutions(questions: Questions) -> Generator[None]:
    """Let fake convolutions on the device return the layouts of the GPU that answers these questions."""
    select, layout = _C._select_conv_backend, _C._conv_determine_backend_memory_format

    def selected(x: Tensor, weight: Tensor, *arguments: Any, **keywords: Any) -> Any:
        if x.device != SHOWN:
            return select(x, weight, *arguments, **keywords)
        has_cudnn = torch.bfloat16 not in (x.dtype, weight.dtype) or questions.answer(_has_bfloat16)
        depthwise = not keywords["transposed"] and 1 < keywords["groups"] == x.shape[1]
        return _OnGpu(has_cudnn or depthwise)

    def layout_of(x: Tensor, weight: Tensor, backend: Any) -> torch.memory_format:
        return _layout(x, weight, backend) if isinstance(backend, _OnGpu) else layout(x, weight, backend)

    with (
        patch.object(_C, "_select_conv_backend", selected),
        patch.object(_C, "_conv_determine_backend_memory_format", layout_of),
    ):
        yield


def _has_bfloat16(capability: Capability) -> bool:
    return capability.major >= 8


def _layout(x: Tensor, weight: Tensor, backend: _OnGpu) -> torch.memory_format:
    last = _BY_DIMENSIONS.get(weight.dim())
    if not backend.channels_last or last is None or torch.float64 in (x.dtype, weight.dtype):
        return torch.contiguous_format
    return last if _suggests(x, last) or _suggests(weight, last) else torch.contiguous_format


def _suggests(tensor: Tensor, last: torch.memory_format) -> bool:
    """Return whether PyTorch takes a tensor's layout for channels last, by its strides alone: one that is
    contiguous too is not.
    """
    return tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
