"""NAdam, by the operations of `torch.optim.NAdam`.

    mu(t)      = beta1 · (1 - 0.96^(t · momentum_decay) / 2)
    mu_product ← mu_product · mu(step)
    exp_avg    ← beta1 · exp_avg + (1 - beta1) · gradient
    exp_avg_sq ← beta2 · exp_avg_sq + (1 - beta2) · gradient²

The direction is a sum of the gradient and the average, each over the square root of the second moment. The
running product is a number on the host, the same for all parameters of a group.

Reference: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop, 2016.
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
    rate_as_given,
)


def _mu(beta1: float, momentum_decay: float, step: float) -> float:
    return beta1 * (1.0 - 0.5 * (0.96 ** (step * momentum_decay)))


def nadam(
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
    momentum_decay: float,
    mu_product: float,
    decoupled: bool = False,
    maximize: bool = False,
    lr_dtype: torch.dtype | None = None,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as NAdam, one operation of PyTorch after the other.

    mu_product: with the factor of this step.
    decoupled: whether the decay is the weight's own, not part of the gradient.
    lr_dtype: of a rate that is a tensor, whose products are rounded to it.
    foreach: whether by PyTorch's kernels for lists of tensors.
    """
    kernels, rate = elementwise(foreach), rate_as_given(lr, lr_dtype)
    decay = 0.0 if decoupled else weight_decay
    gradient = changed_gradient(weight, gradient, decay, maximize, clip, kernels=kernels)
    if weight_decay and decoupled:
        kernels.mul_(weight, 1 - rate * weight_decay)
    mu, mu_next = (_mu(beta1, momentum_decay, count) for count in (step, step + 1))
    kernels.lerp_(exp_avg, gradient, 1 - beta1)
    kernels.mul_(exp_avg_sq, beta2)
    kernels.addcmul_(exp_avg_sq, gradient, gradient, 1 - beta2)
    correction2 = 1 - beta2**step
    if foreach:
        divisor = kernels.sqrt(exp_avg_sq)
        kernels.div_(divisor, correction2**0.5)
        rate = lr  # the kernels for lists take a rate that is a tensor by its value
    else:
        divisor = exp_avg_sq.div(correction2).sqrt()
    kernels.add_(divisor, eps)
    kernels.addcdiv_(weight, gradient, divisor, -rate * (1.0 - mu) / (1.0 - mu_product))
    kernels.addcdiv_(weight, exp_avg, divisor, (-rate * mu_next) / (1.0 - mu_product * mu_next))


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("beta1", "beta2", "eps", "weight_decay")
    keywords |= settings("momentum_decay", "mu_product")
    if group["decoupled_weight_decay"]:
        keywords["decoupled"] = True
    if isinstance(group["lr"], Tensor):
        keywords["lr_dtype"] = group["lr"].dtype
    return nadam, ("exp_avg", "exp_avg_sq"), keywords


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time."""
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    decay = 0 if not keywords["weight_decay"] else 2 if keywords.get("decoupled") else 3
    return Effort(22 + decay + changes, 2)


def _factor(group: Group, step: float) -> float:
    return _mu(group["betas"][0], group["momentum_decay"], step)


OPTIMIZER = PlannedOptimizer(
    title="NAdam",
    make=torch.optim.NAdam,
    hyperparameters=("lr", "weight_decay", "betas", "eps"),
    numbers=("lr", "weight_decay", "beta1", "beta2", "eps", "momentum_decay", "mu_product"),
    choose=_choose,
    functions=(UpdateFunction(nadam, _effort),),
    counts=True,
    products={"mu_product": _factor},
    foreach_copies=1,  # the square roots
    switches=("decoupled_weight_decay", "maximize"),
    zeros=("weight_decay",),
    refused=("differentiable", "capturable"),
    unplanned=has_complex_weights,
)
