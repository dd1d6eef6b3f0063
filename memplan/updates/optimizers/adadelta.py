"""Adadelta, by the operations of `torch.optim.Adadelta`.

    square_avg ← rho · square_avg + (1 - rho) · gradient²
    delta      = √(acc_delta + eps) / √(square_avg + eps) · gradient
    acc_delta  ← rho · acc_delta + (1 - rho) · delta²
    weight     ← weight - lr · delta

Reference: Zeiler, "ADADELTA: an adaptive learning rate method", arXiv:1212.5701, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...program.program import Target
from ..elementwise import elementwise
from ..planned_optimizer import (
    Effort,
    Group,
    PlannedOptimizer,
    Settings,
    UpdateFunction,
    changed_gradient,
    has_complex_weights,
)


def adadelta(
    weight: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    acc_delta: Tensor,
    lr: float,
    step: float,
    *,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as Adadelta, one operation of PyTorch after the other.

    foreach: whether by PyTorch's kernels for lists of tensors.
    """
    kernels = elementwise(foreach)
    gradient = changed_gradient(weight, gradient, weight_decay, maximize, clip, kernels=kernels)
    kernels.mul_(square_avg, rho)
    kernels.addcmul_(square_avg, gradient, gradient, 1 - rho)
    divisor = kernels.add(square_avg, eps)
    kernels.sqrt_(divisor)
    delta = kernels.add(acc_delta, eps)
    kernels.sqrt_(delta)
    kernels.div_(delta, divisor)
    kernels.mul_(delta, gradient)
    kernels.mul_(acc_delta, rho)
    kernels.addcmul_(acc_delta, delta, delta, 1 - rho)
    kernels.add_(weight, delta, alpha=-lr)


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    return adadelta, ("square_avg", "acc_delta"), settings("rho", "eps", "weight_decay")


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time."""
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    decay = keywords["weight_decay"] != 0
    return Effort(27 + 3 * decay + changes, 2 + (decay or changes > 0))


OPTIMIZER = PlannedOptimizer(
    title="Adadelta",
    make=torch.optim.Adadelta,
    hyperparameters=("lr", "weight_decay", "eps"),
    numbers=("lr", "weight_decay", "rho", "eps"),
    choose=_choose,
    functions=(UpdateFunction(adadelta, _effort),),
    counts=True,
    foreach_copies=2,  # both square roots
    switches=("maximize",),
    zeros=("weight_decay",),
    refused=("differentiable", "capturable"),
    unplanned=has_complex_weights,
)
