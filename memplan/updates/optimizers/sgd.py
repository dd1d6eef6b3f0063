"""SGD, by the operations of `torch.optim.SGD` or its fused kernel, with momentum.

Reference: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...program.program import Target
from ...torch_support.torch_optimizers import fused_sgd
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
)


def sgd(
    weight: Tensor,
    gradient: Tensor,
    lr: float,
    step: float,
    *,
    weight_decay: float,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as SGD without momentum."""
    kernels = elementwise(foreach)
    gradient = changed_gradient(
        weight, gradient, weight_decay=weight_decay, maximize=maximize, clip=clip, kernels=kernels
    )
    kernels.add_(weight, gradient, alpha=-lr)


def sgd_momentum(
    weight: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    step: float,
    *,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as SGD with momentum. The buffer of the first step is the gradient itself, undamped."""
    kernels, given = elementwise(foreach), gradient
    gradient = changed_gradient(
        weight, gradient, weight_decay=weight_decay, maximize=maximize, clip=clip, kernels=kernels
    )
    if step == 1:
        momentum_buffer.copy_(gradient)
    else:
        kernels.mul_(momentum_buffer, momentum)
        kernels.add_(momentum_buffer, gradient, alpha=1 - dampening)
    if not nesterov:
        direction = momentum_buffer
    # The gradient itself may be read later; a copy can take the sum.
    elif gradient is given:
        direction = kernels.add(gradient, momentum_buffer, alpha=momentum)
    else:
        kernels.add_(gradient, momentum_buffer, alpha=momentum)
        direction = gradient
    kernels.add_(weight, direction, alpha=-lr)


def sgd_fused(weight: Tensor, gradient: Tensor, lr: float, step: float, **hyperparameters: Any) -> None:
    """Update as SGD without momentum by PyTorch's fused kernel."""
    _fused([(weight, gradient)], lr, step, **hyperparameters)


def sgd_momentum_fused(
    weight: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update as SGD with momentum by PyTorch's fused kernel."""
    _fused([(weight, gradient, momentum_buffer)], lr, step, **hyperparameters)


def _fused(
    members: Sequence[tuple[Tensor, ...]],
    lr: float,
    step: float,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    """Update several weights by one fused kernel.

    members: per weight it, its gradient and, with momentum, its buffer.
    """
    weights, gradients, *buffers = map(list, zip(*members, strict=True))
    fused_sgd(
        weights,
        [clipped(gradient, clip) for gradient in gradients],
        buffers[0] if buffers else [],
        lr=lr,
        momentum=momentum,
        dampening=dampening,
        nesterov=nesterov,
        maximize=maximize,
        # In the first step the kernel fills the buffer with the gradient, and does not read it.
        is_first_step=bool(buffers) and step == 1,
        **hyperparameters,
    )


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    if not group["momentum"]:
        return sgd_fused if group["fused"] else sgd, (), settings("weight_decay")
    keywords = settings("momentum", "dampening", "weight_decay") | {"nesterov": bool(group["nesterov"])}
    return sgd_momentum_fused if group["fused"] else sgd_momentum, ("momentum_buffer",), keywords


def _effort(keywords: Mapping[str, Any], passes: int = 3) -> Effort:
    """Count the passes, one operation at a time.

    passes: without decay, Nesterov, maximizing or clipping.
    """
    decay, nesterov = keywords["weight_decay"] != 0, bool(keywords.get("nesterov"))
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    temporaries = int(decay or nesterov or changes > 0)
    return Effort(passes + 3 * decay + 3 * nesterov + changes, temporaries)


OPTIMIZER = PlannedOptimizer(
    title="SGD",
    make=torch.optim.SGD,
    hyperparameters=("lr", "weight_decay", "momentum", "nesterov"),
    # The places of the numbers are in fingerprints: betas and eps are AdamW's, and keep theirs.
    numbers=("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening"),
    choose=_choose,
    functions=(
        UpdateFunction(sgd, _effort),
        UpdateFunction(sgd_momentum, partial(_effort, passes=8)),
        UpdateFunction(sgd_fused, constant(3), fused=True, together=_fused),
        UpdateFunction(sgd_momentum_fused, constant(5), fused=True, together=_fused),
    ),
    switches=("maximize", "fused", "nesterov"),
    zeros=("weight_decay", "momentum"),
    refused=("differentiable",),
)
