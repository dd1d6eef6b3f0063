"""Fake kernels that PyTorch lacks or that leave something out: a trace takes the shapes of results from them.

    fused GRU cells   used where cuDNN is switched off; registered with PyTorch when this is imported
    CTC losses        with their lengths as numbers

`output_layouts` compares them with the kernels where the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...torch_support.torch_operators import CTC_LOSS, CTC_LOSS_BACKWARD, has_fake_kernel

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
    if not has_fake_kernel(_name):  # a later PyTorch may have its own
        torch.library.register_fake(_name, _kernel)


def _ctc_loss(
    scores: Tensor, _targets: Tensor, _ends: Sequence[int], lengths: Sequence[int], *_others: Any
) -> tuple[Tensor, Tensor]:
    """Return fakes of the loss per sample, and of the paths' likelihoods: a state for each target and each
    blank.
    """
    samples = len(lengths)
    paths = scores.new_empty(samples, scores.shape[0], 2 * max(lengths, default=0) + 1)
    return scores.new_empty(samples), paths


def _ctc_backward(_gradient: Tensor, scores: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


CTC: Mapping[Any, Callable[..., Any]] = {
    CTC_LOSS: _ctc_loss,
    CTC_LOSS_BACKWARD: _ctc_backward,
}
"""The forms of their results."""
