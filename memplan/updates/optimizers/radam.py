"""RAdam, by the operations of `torch.optim.RAdam`.

    exp_avg    ← beta1 · exp_avg + (1 - beta1) · gradient
    exp_avg_sq ← beta2 · exp_avg_sq + (1 - beta2) · gradient²
    rho        = rho_inf - 2 · step · beta2^step / (1 - beta2^step),   rho_inf = 2 / (1 - beta2) - 1

Where rho is above 5 the direction is Adam's times a rectification of its variance; before, the average.

Reference: Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR 2020,
arXiv:1908.03265, algorithm 2.
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

VARIANCE_IS_KNOWN = 5.0
"""Length of the average above which PyTorch rectifies; the paper has 4."""


def radam(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    lr: float,
    step: float,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool = False,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as RAdam, one operation of PyTorch after the other.

    decoupled: whether the decay is the weight's own, not part of the gradient.
    foreach: whether by PyTorch's kernels for lists of tensors, which sum up both cases in one formula.
    """
    kernels = elementwise(foreach)
    decay = 0.0 if decoupled else weight_decay
    gradient = changed_gradient(weight, gradient, decay, maximize, clip, kernels=kernels)
    if weight_decay and decoupled:
        kernels.mul_(weight, 1 - lr * weight_decay)
    kernels.lerp_(exp_avg, gradient, 1 - beta1)
    kernels.mul_(exp_avg_sq, beta2)
    kernels.addcmul_(exp_avg_sq, gradient, gradient, 1 - beta2)
    del gradient  # a copy that was made here is freed before the direction is made
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * step * (beta2**step) / correction2
    rectification = None
    if rho > VARIANCE_IS_KNOWN:
        rectification = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
    if foreach:
        rectified = 0 if rectification is None else rectification
        factor = kernels.sqrt(exp_avg_sq)
        kernels.add_(factor, eps)
        # One of the two terms is zero: a division by zero makes the first infinite, its reciprocal zero.
        kernels.div_(factor, (correction2**0.5) * (lr * rectified / correction1) * -1)
        kernels.reciprocal_(factor)
        kernels.add_(factor, [(lr * (0 if rectified > 0 else 1.0) / correction1) * -1])
        kernels.addcmul_(weight, exp_avg, factor, 1)
    elif rectification is None:
        weight.add_(exp_avg / correction1 * lr, alpha=-1.0)
    else:
        adaptive = (correction2**0.5) / exp_avg_sq.sqrt().add_(eps)
        weight.add_(exp_avg / correction1 * lr * adaptive * rectification, alpha=-1.0)


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("beta1", "beta2", "eps", "weight_decay")
    if group["decoupled_weight_decay"]:
        keywords["decoupled"] = True
    return radam, ("exp_avg", "exp_avg_sq"), keywords


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time, of a step that rectifies."""
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    decay = 0 if not keywords["weight_decay"] else 2 if keywords.get("decoupled") else 3
    return Effort(28 + decay + changes, 3)


OPTIMIZER = PlannedOptimizer(
    title="RAdam",
    make=torch.optim.RAdam,
    hyperparameters=("lr", "weight_decay", "betas", "eps"),
    numbers=("lr", "weight_decay", "beta1", "beta2", "eps"),
    choose=_choose,
    functions=(UpdateFunction(radam, _effort),),
    counts=True,
    foreach_copies=1,  # the factors
    switches=("decoupled_weight_decay", "maximize"),
    zeros=("weight_decay",),
    refused=("differentiable", "capturable"),
    unplanned=has_complex_weights,
)
