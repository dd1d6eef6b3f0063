"""Operators for which CUDA has other implementations than the CPU, replaced in the dispatcher.

scaled_dot_product_attention   attention.py
dropout                        native_dropout, which keeps its mask as bits
_batch_norm_impl_index         cuDNN's batch norm, where it takes the dtypes
softmax, log_softmax           of float16 into float32 in one operator
rms_norm, lstm_cell, gru_cell  one operator each
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...torch_support.torch_operators import composite, overload, overriding_silently
from .attention import Attention, attention
from .devices import SHOWN
from .questions import Questions

aten: Any = torch.ops.aten
KEYS = "AutogradCPU", "CPU"
"""With gradients, and in inference mode."""
SMALLEST_EPSILON = 1e-5  # cuDNN's
OF_CUDA_ALONE = ("_fused_rms_norm",)
"""Operators that the dispatcher would take apart, having no kernel of the CPU."""


@contextmanager
def cuda_operators(questions: Questions) -> Generator[None]:
    """Let operators on the device be made of those that the GPU runs that answers these questions."""
    library: Any = torch.library.Library("aten", "IMPL")
    try:
        with overriding_silently():
            for name, kernel in _kernels(questions).items():
                made = partial(_on_device, kernel, composite(overload(name)))
                for key in KEYS:
                    library.impl(name, made, key, allow_override=True)
            for name in OF_CUDA_ALONE:
                library.impl(name, _never, "CPU")
            library.impl("histc", _histc, "Meta", allow_override=True)
        yield
    finally:
        library._destroy()


def _histc(x: Tensor, bins: int = 100, _low: float = 0, _high: float = 0) -> Tensor:
    """Return the form of a histogram: without it PyTorch runs the CPU's kernel, which takes no integers."""
    return x.new_empty([bins])


def _never(*_arguments: Any, **_keywords: Any) -> Any:
    raise RuntimeError("a kernel of CUDA's was asked to run on the CPU")


def _kernels(questions: Questions) -> dict[str, Callable[..., Any]]:
    """Return by operator what replaces it; NotImplemented from one means the operator's own."""
    return {
        "scaled_dot_product_attention": partial(_attention, questions),
        "dropout": _dropout,
        "_batch_norm_impl_index": _batch_norm,
        "softmax.int": partial(_softmax, aten._softmax),
        "log_softmax.int": partial(_softmax, aten._log_softmax),
        "rms_norm": _rms_norm,
        "lstm_cell": _lstm_cell,
        "gru_cell": _gru_cell,
    }


def _on_device(
    kernel: Callable[..., Any], own: Callable[..., Any], tensor: Tensor, *arguments: Any, **keywords: Any
) -> Any:
    if tensor.device != SHOWN:
        return own(tensor, *arguments, **keywords)
    made = kernel(tensor, *arguments, **keywords)
    return own(tensor, *arguments, **keywords) if made is NotImplemented else made


def _attention(
    questions: Questions,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    call = Attention(
        query=query,
        key=key,
        value=value,
        mask=attn_mask,
        dropout=dropout_p,
        is_causal=is_causal,
        scale=scale,
        grouped=enable_gqa,
    )
    return attention(questions, call)


def _dropout(x: Tensor, probability: float, train: bool) -> Any:
    # The conditions of the fused kernel in ATen/native/Dropout.cpp.
    if train and 0 < probability < 1 and x.numel():
        return aten.native_dropout(x, probability, True)[0]
    return NotImplemented


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Run cuDNN's batch norm under its conditions (aten/src/ATen/native/Normalization.cpp)."""
    if weight is None or bias is None or not cudnn_enabled or (mean is None) != (variance is None):
        return NotImplemented
    if mean is None and not training:
        return NotImplemented
    if torch.bfloat16 in (x.dtype, weight.dtype) or (
        x.dtype == torch.float16 and weight.dtype != torch.float32
    ):
        return NotImplemented
    # The largest batches that PyTorch gives to cuDNN.
    if x.dim() < 3 or x.shape[0] > (880_801 if training else 65_535) or eps < SMALLEST_EPSILON:
        return NotImplemented
    made, saved_mean, saved_variance, reserve = aten.cudnn_batch_norm(
        x, weight, bias, mean, variance, training, momentum, eps
    )
    return made, saved_mean, saved_variance, reserve, 1  # backward's index for cuDNN


def _softmax(kernel: Any, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    if x.dtype == torch.float16 and dtype == torch.float32:
        return kernel(x, dim, True)
    return NotImplemented


def _rms_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    if weight is not None and weight.dtype != x.dtype:
        return NotImplemented
    return aten._fused_rms_norm(x, normalized_shape, weight, eps)[0]


def _lstm_cell(
    x: Tensor,
    hx: list[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    gates = aten.matmul(x, w_ih.t()), aten.matmul(hx[0], w_hh.t())
    hidden, cell, _workspace = aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)
    return hidden, cell


def _gru_cell(
    x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Any:
    gates = aten.matmul(x, w_ih.t()), aten.matmul(hx, w_hh.t())
    return aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]
