"""RMSprop, by the operations of `torch.optim.RMSprop`.

    square_avg ← alpha · square_avg + (1 - alpha) · gradient²
    weight     ← weight - lr · gradient / (√square_avg + eps)

Centered, the square of the gradient's own average is taken off `square_avg`. With momentum the weight
follows a buffer of such directions.

Reference: Tieleman, Hinton, "Lecture 6.5: rmsprop", Coursera, 2012; centered: Graves, arXiv:1308.0850.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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


def rmsprop(
    weight: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    lr: float,
    step: float,
    *,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float = 0.0,
    grad_avg: Tensor | None = None,
    momentum_buffer: Tensor | None = None,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as RMSprop, one operation of PyTorch after the other.

    grad_avg: the state of a centered one.
    momentum_buffer: the state of one with momentum.
    foreach: whether by PyTorch's kernels for lists of tensors.
    """
    kernels = elementwise(foreach)
    gradient = changed_gradient(weight, gradient, weight_decay, maximize, clip, kernels=kernels)
    kernels.mul_(square_avg, alpha)
    kernels.addcmul_(square_avg, gradient, gradient, 1 - alpha)
    if grad_avg is None:
        divisor = kernels.sqrt(square_avg)
    else:
        kernels.lerp_(grad_avg, gradient, 1 - alpha)
        divisor = kernels.addcmul(square_avg, grad_avg, grad_avg, -1)
        kernels.sqrt_(divisor)
    kernels.add_(divisor, eps)
    if momentum_buffer is None:
        kernels.addcdiv_of_all_(weight, gradient, divisor, -lr)
    else:
        kernels.mul_(momentum_buffer, momentum)
        kernels.addcdiv_of_all_(momentum_buffer, gradient, divisor, 1)
        kernels.add_(weight, momentum_buffer, alpha=-lr)


def rmsprop_centered(
    weight: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    grad_avg: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update as RMSprop, centered."""
    rmsprop(weight, gradient, square_avg, lr, step, grad_avg=grad_avg, **hyperparameters)


def rmsprop_momentum(
    weight: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update as RMSprop with momentum."""
    rmsprop(weight, gradient, square_avg, lr, step, momentum_buffer=momentum_buffer, **hyperparameters)


def rmsprop_centered_momentum(
    weight: Tensor,
    gradient: Tensor,
    square_avg: Tensor,
    momentum_buffer: Tensor,
    grad_avg: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update as RMSprop, centered and with momentum."""
    states = {"momentum_buffer": momentum_buffer, "grad_avg": grad_avg}
    rmsprop(weight, gradient, square_avg, lr, step, **states, **hyperparameters)


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("alpha", "eps", "weight_decay")
    if group["momentum"] > 0:
        keywords |= settings("momentum")
        if group["centered"]:
            return rmsprop_centered_momentum, ("square_avg", "momentum_buffer", "grad_avg"), keywords
        return rmsprop_momentum, ("square_avg", "momentum_buffer"), keywords
    if group["centered"]:
        return rmsprop_centered, ("square_avg", "grad_avg"), keywords
    return rmsprop, ("square_avg",), keywords


def _effort(keywords: Mapping[str, Any], passes: int = 13) -> Effort:
    """Count the passes, one operation at a time.

    passes: without decay, maximizing or clipping.
    """
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    decay = keywords["weight_decay"] != 0
    return Effort(passes + 3 * decay + changes, 1 + (decay or changes > 0))


OPTIMIZER = PlannedOptimizer(
    title="RMSprop",
    make=torch.optim.RMSprop,
    hyperparameters=("lr", "weight_decay", "momentum", "eps"),
    numbers=("lr", "weight_decay", "alpha", "eps", "momentum"),
    choose=_choose,
    functions=(
        UpdateFunction(rmsprop, _effort),
        UpdateFunction(rmsprop_centered, partial(_effort, passes=19)),
        UpdateFunction(rmsprop_momentum, partial(_effort, passes=18)),
        UpdateFunction(rmsprop_centered_momentum, partial(_effort, passes=24)),
    ),
    counts=True,
    foreach_copies=1,  # the square roots
    switches=("centered", "maximize"),
    zeros=("weight_decay", "momentum"),
    refused=("differentiable", "capturable"),
    unplanned=has_complex_weights,
)
