"""Adagrad, by the operations of `torch.optim.Adagrad`.

    sum    ← sum + gradient²
    weight ← weight - lr / (1 + (step - 1) · lr_decay) · gradient / (√sum + eps)

Reference: Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic
optimization", JMLR 12, 2011.
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


def adagrad(
    weight: Tensor,
    gradient: Tensor,
    sum_: Tensor,
    lr: float,
    step: float,
    *,
    lr_decay: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as Adagrad, one operation of PyTorch after the other.

    foreach: whether by PyTorch's kernels for lists of tensors, which multiply the gradient by the rate first.
    """
    kernels, given = elementwise(foreach), gradient
    gradient = changed_gradient(weight, gradient, weight_decay, maximize, clip, kernels=kernels)
    # Python's doubles, as in torch.optim: a tensor's float32 would round.
    rate = -lr / (1 + (step - 1) * lr_decay)
    kernels.addcmul_(sum_, gradient, gradient, 1)
    divisor = kernels.sqrt(sum_)
    kernels.add_(divisor, eps)
    if not foreach:
        kernels.addcdiv_(weight, gradient, divisor, rate)
        return
    # The gradient itself must not change: what reads it may be recomputed.
    if gradient is given:
        gradient = kernels.mul(gradient, [rate])
    else:
        kernels.mul_(gradient, [rate])
    kernels.addcdiv_of_all_(weight, gradient, divisor, 1)


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    return adagrad, ("sum",), settings("lr_decay", "eps", "weight_decay")


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time."""
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    decay, lists = keywords["weight_decay"] != 0, bool(keywords.get("foreach"))
    return Effort(11 + 3 * decay + 2 * lists + changes, 1 + (decay or lists or changes > 0))


def _unplanned(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether sums begin above zero, by a fused kernel, or a parameter is complex."""
    return has_complex_weights(optimizer) or any(
        group["fused"] or group["initial_accumulator_value"] for group in optimizer.param_groups
    )


OPTIMIZER = PlannedOptimizer(
    title="Adagrad",
    make=torch.optim.Adagrad,
    hyperparameters=("lr", "weight_decay", "eps"),
    numbers=("lr", "weight_decay", "lr_decay", "eps"),
    choose=_choose,
    functions=(UpdateFunction(adagrad, _effort),),
    counts=True,
    foreach_copies=2,  # the square roots, and the gradients times the rate
    switches=("maximize",),
    zeros=("weight_decay",),
    refused=("differentiable",),
    unplanned=_unplanned,
)
