"""How one weight is updated, in place: the very operations of `torch.optim` with foreach=False, bit by bit.

A rule is a function (weight, gradient, states…, lr, step, *, hyperparameters). `step` counts from 1. AdamW's
divisor is made in place, so that an update takes one tensor beside its inputs where PyTorch takes two.

References: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, arXiv:1711.05101;
Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


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
) -> None:
    if weight_decay:
        weight.mul_(1 - lr * weight_decay)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    divisor = exp_avg_sq.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    weight.addcdiv_(exp_avg, divisor, value=-(lr / (1 - beta1**step)))


def sgd(
    weight: Tensor,
    gradient: Tensor,
    lr: float,
    step: float,
    *,
    weight_decay: float,
) -> None:
    if weight_decay:
        gradient = gradient.add(weight, alpha=weight_decay)
    weight.add_(gradient, alpha=-lr)


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
) -> None:
    """The first step's buffer is the gradient itself, undamped."""
    if weight_decay:
        gradient = gradient.add(weight, alpha=weight_decay)
    if step == 1:
        momentum_buffer.copy_(gradient)
    else:
        momentum_buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
    direction = gradient.add(momentum_buffer, alpha=momentum) if nesterov else momentum_buffer
    weight.add_(direction, alpha=-lr)


class Effort(NamedTuple):
    """passes: how often a rule reads or writes as many bytes as the gradient has.
    temporaries: as many bytes it takes beside its inputs."""

    passes: int
    temporaries: int


ADAMW = Effort(20, 1)
"""With weight decay, as PyTorch's default is."""


def effort(target: Any, keywords: Mapping[str, Any]) -> Effort:
    """Counted from the lines above, one operation of PyTorch at a time."""
    decay = keywords["weight_decay"] != 0
    if target is adamw:
        return ADAMW if decay else Effort(ADAMW.passes - 2, ADAMW.temporaries)
    if target is sgd:
        return Effort(3 + 3 * decay, int(decay))
    nesterov = bool(keywords["nesterov"])
    return Effort(8 + 3 * decay + 3 * nesterov, decay + nesterov)
