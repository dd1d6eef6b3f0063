"""CTC losses with their lengths as numbers, which PyTorch's fake kernels leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_internals import CTC_LOSS, CTC_LOSS_BACKWARD


def _loss(
    scores: Tensor, _targets: Tensor, _ends: Sequence[int], lengths: Sequence[int], *_others: Any
) -> tuple[Tensor, Tensor]:
    """Return fakes of the loss per sample, and of the paths' likelihoods: a state for each target and each
    blank.
    """
    samples = len(lengths)
    paths = scores.new_empty(samples, scores.shape[0], 2 * max(lengths, default=0) + 1)
    return scores.new_empty(samples), paths


def _backward(_gradient: Tensor, scores: Tensor, *_others: Any) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


CTC: Mapping[Any, Callable[..., Any]] = {
    CTC_LOSS: _loss,
    CTC_LOSS_BACKWARD: _backward,
}
"""The forms of their results."""
