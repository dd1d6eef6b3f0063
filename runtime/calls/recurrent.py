"""Fake kernels of CUDA's fused GRU cell, which PyTorch lacks: a trace takes the shapes of results from them.

They are used where cuDNN is switched off. `settled` compares them with the kernels where the program runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch_internals import has_fake_kernel

GATES, SAVED = 3, 5
"""Gates of a cell, and what it saves for backward, in units of the hidden size."""


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor, *_biases: Tensor | None
) -> tuple[Tensor, Tensor]:
    saved = hidden.new_empty((hidden.shape[0], SAVED * hidden.shape[1]))
    return torch.empty_like(hidden, memory_format=torch.contiguous_format), saved


def gru_cell_backward(gradient: Tensor, saved: Tensor, has_bias: bool) -> tuple[Any, ...]:
    batch, hidden = saved.shape[0], saved.shape[1] // SAVED

    def gates() -> Tensor:
        return saved.new_empty((batch, GATES * hidden))

    def bias() -> Tensor | None:
        return saved.new_empty((GATES * hidden,)) if has_bias else None

    return gates(), gates(), torch.empty_like(gradient), bias(), bias()


for _name, _kernel in (
    ("aten::_thnn_fused_gru_cell", gru_cell),
    ("aten::_thnn_fused_gru_cell_backward", gru_cell_backward),
):
    if not has_fake_kernel(_name):
        torch.library.register_fake(_name, _kernel)
