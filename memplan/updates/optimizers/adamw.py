"""AdamW, by the operations of `torch.optim.AdamW` or its fused kernel, with amsgrad.

References: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, arXiv:1711.05101;
Reddi, Kale, Kumar, "On the convergence of Adam and beyond", ICLR 2018, arXiv:1904.09237.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...program.program import Target
from ...torch_support.torch_optimizers import fused_adam, fused_adamw
from ..elementwise import elementwise
from ..planned_optimizer import (
    Effort,
    Group,
    PlannedOptimizer,
    Settings,
    UpdateFunction,
    changed_gradient,
    clipped,
    constant,
    rate_as_given,
)

ADAMW, ADAMW_FUSED = Effort(20, 1), Effort(7, 0)
"""With weight decay, as PyTorch's default is. Machines name the speed of this update."""


def adamw(
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
    decoupled: bool = True,
    maximize: bool = False,
    lr_dtype: torch.dtype | None = None,
    largest: Tensor | None = None,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as AdamW, one operation of PyTorch after the other.

    decoupled: False for Adam, whose decay is part of the gradient.
    lr_dtype: of a rate that is a tensor, whose products are rounded to it.
    largest: the state max_exp_avg_sq of amsgrad.
    foreach: whether by PyTorch's kernels for lists of tensors.
    """
    rate = rate_as_given(lr, lr_dtype)
    kernels = elementwise(foreach)
    decay = 0.0 if decoupled else weight_decay
    gradient = changed_gradient(
        weight, gradient, weight_decay=decay, maximize=maximize, clip=clip, kernels=kernels
    )
    if weight_decay and decoupled:
        kernels.mul_(weight, 1 - rate * weight_decay)
    # The second moment is of real and imaginary parts, each by itself.
    if weight.is_complex():
        weight, gradient, exp_avg, exp_avg_sq = map(
            torch.view_as_real, (weight, gradient, exp_avg, exp_avg_sq)
        )
        largest = None if largest is None else torch.view_as_real(largest)
    # lerp, as torch.optim does: beta1 · exp_avg + (1 - beta1) · gradient rounds otherwise.
    kernels.lerp_(exp_avg, gradient, 1 - beta1)
    kernels.mul_(exp_avg_sq, beta2)
    kernels.addcmul_(exp_avg_sq, gradient, gradient, 1 - beta2)
    del gradient  # a copy that was made here is freed before the divisor is made
    if largest is not None:
        kernels.maximum_(largest, exp_avg_sq)
    divisor = kernels.sqrt(exp_avg_sq if largest is None else largest)
    # Corrections in Python's double precision; eps after them, as in torch.optim.
    kernels.div_(divisor, (1 - beta2**step) ** 0.5)
    kernels.add_(divisor, eps)
    kernels.addcdiv_(weight, exp_avg, divisor, -(rate / (1 - beta1**step)))


def adamw_amsgrad(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update as AdamW with amsgrad."""
    adamw(
        weight,
        gradient,
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        lr=lr,
        step=step,
        largest=max_exp_avg_sq,
        **hyperparameters,
    )


def adamw_fused(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    lr: float | Tensor,
    step: float | Tensor,
    *,
    largest: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    """Update as AdamW by PyTorch's fused kernel; the parameters are those of `adamw`.

    lr, step: 0-dimensional tensors of float32 on the weight's device, or numbers.
    """
    member = (weight, gradient, exp_avg, exp_avg_sq)
    _fused([member if largest is None else (*member, largest)], lr, step, **hyperparameters)


def _fused(
    members: Sequence[tuple[Tensor, ...]],
    lr: float | Tensor,
    step: float | Tensor,
    *,
    decoupled: bool = True,
    maximize: bool = False,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    """Update several weights by one fused kernel.

    members: per weight it, its gradient, exp_avg, exp_avg_sq and, of amsgrad, max_exp_avg_sq.
    """
    weights, gradients, *states = map(list, zip(*members, strict=True))
    if not isinstance(step, Tensor):
        # The kernel reads the count from memory.
        step = torch.full((), step, dtype=torch.float32, device=weights[0].device)
    amsgrad = len(states) == 3
    (fused_adamw if decoupled else fused_adam)(
        weights,
        [clipped(gradient, clip) for gradient in gradients],
        *(states if amsgrad else (*states, [])),
        [step] * len(weights),
        lr=lr,
        amsgrad=amsgrad,
        maximize=maximize,
        **hyperparameters,
    )


def adamw_fused_amsgrad(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    lr: float | Tensor,
    step: float | Tensor,
    **hyperparameters: Any,
) -> None:
    """Update as AdamW with amsgrad by PyTorch's fused kernel."""
    adamw_fused(
        weight,
        gradient,
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        lr=lr,
        step=step,
        largest=max_exp_avg_sq,
        **hyperparameters,
    )


def choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    """Choose the update of a group of AdamW or Adam."""
    keywords = settings("beta1", "beta2", "eps", "weight_decay")
    if not group["decoupled_weight_decay"]:
        keywords["decoupled"] = False
    # Fused kernels take a rate that is a tensor by its value; the other functions round with it.
    if not group["fused"] and isinstance(group["lr"], Tensor):
        keywords["lr_dtype"] = group["lr"].dtype
    states = ("exp_avg", "exp_avg_sq")
    if group["amsgrad"]:
        function = adamw_fused_amsgrad if group["fused"] else adamw_amsgrad
        return function, (*states, "max_exp_avg_sq"), keywords
    return adamw_fused if group["fused"] else adamw, states, keywords


def _effort(keywords: Mapping[str, Any], amsgrad: int = 0) -> Effort:
    """Count the passes of `adamw`, one operation at a time."""
    decay = keywords["weight_decay"] != 0
    passes = ADAMW.passes - (0 if decay else 2) + (decay and not keywords.get("decoupled", True))
    extra = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords) + amsgrad
    return Effort(passes + extra, ADAMW.temporaries)


OPTIMIZER = PlannedOptimizer(
    title="AdamW",
    make=torch.optim.AdamW,
    hyperparameters=("lr", "weight_decay", "betas", "eps", "amsgrad"),
    # The places of the numbers are in fingerprints: momentum and dampening are SGD's, and keep theirs.
    numbers=("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening"),
    choose=choose,
    functions=(
        UpdateFunction(adamw, _effort),
        UpdateFunction(adamw_amsgrad, partial(_effort, amsgrad=3)),
        UpdateFunction(adamw_fused, constant(*ADAMW_FUSED), fused=True, together=_fused),
        UpdateFunction(adamw_fused_amsgrad, constant(9), fused=True, together=_fused),
    ),
    counts=True,
    foreach_copies=1,  # the square roots
    switches=("amsgrad", "maximize", "fused", "decoupled_weight_decay"),
    zeros=("weight_decay",),
    refused=("differentiable", "capturable"),
)
