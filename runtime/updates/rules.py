"""How one weight is updated, in place: the very operations of `torch.optim`, bit by bit, one tensor after the
other, or its fused kernels on one tensor.

A rule is a function (weight, gradient, states…, lr, step, *, hyperparameters, clip). `step` counts from 1.
clip: what the gradient is multiplied by first, beside it and not in place, since what reads it may run again.
No rule takes more than one tensor beside its inputs, where PyTorch takes up to two.

References: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, arXiv:1711.05101;
Reddi, Kale, Kumar, "On the convergence of Adam and beyond", ICLR 2018, arXiv:1904.09237;
Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..torch_internals import fused_adam, fused_adamw, fused_sgd


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
) -> None:
    """decoupled: False for Adam, whose decay is part of the gradient. lr_dtype: of a rate that is a tensor,
    whose products are rounded to it. largest: max_exp_avg_sq."""
    rate: Any = lr if lr_dtype is None else torch.tensor(lr, dtype=lr_dtype)
    gradient = _towards(weight, gradient, 0.0 if decoupled else weight_decay, maximize, clip)
    if weight_decay and decoupled:
        weight.mul_(1 - rate * weight_decay)
    if weight.is_complex():
        weight, gradient, exp_avg, exp_avg_sq = map(
            torch.view_as_real, (weight, gradient, exp_avg, exp_avg_sq)
        )
        largest = None if largest is None else torch.view_as_real(largest)
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    del gradient  # one that was made here goes before the divisor is made
    if largest is not None:
        torch.maximum(largest, exp_avg_sq, out=largest)
    divisor = (exp_avg_sq if largest is None else largest).sqrt()
    divisor.div_((1 - beta2**step) ** 0.5).add_(eps)
    weight.addcdiv_(exp_avg, divisor, value=-(rate / (1 - beta1**step)))


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
    adamw(weight, gradient, exp_avg, exp_avg_sq, lr, step, largest=max_exp_avg_sq, **hyperparameters)


def adamw_fused(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    lr: float,
    step: float,
    *,
    decoupled: bool = True,
    maximize: bool = False,
    largest: Tensor | None = None,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    (fused_adamw if decoupled else fused_adam)(
        [weight],
        [_clipped(gradient, clip)],
        [exp_avg],
        [exp_avg_sq],
        [] if largest is None else [largest],
        [torch.full((), step, dtype=torch.float32, device=weight.device)],
        lr=lr,
        amsgrad=largest is not None,
        maximize=maximize,
        **hyperparameters,
    )


def adamw_fused_amsgrad(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    adamw_fused(weight, gradient, exp_avg, exp_avg_sq, lr, step, largest=max_exp_avg_sq, **hyperparameters)


def sgd(
    weight: Tensor,
    gradient: Tensor,
    lr: float,
    step: float,
    *,
    weight_decay: float,
    maximize: bool = False,
    clip: Tensor | None = None,
) -> None:
    weight.add_(_towards(weight, gradient, weight_decay, maximize, clip), alpha=-lr)


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
) -> None:
    """The first step's buffer is the gradient itself, undamped."""
    given = gradient
    gradient = _towards(weight, gradient, weight_decay, maximize, clip)
    if step == 1:
        momentum_buffer.copy_(gradient)
    else:
        momentum_buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
    if nesterov:
        own = gradient is not given
        direction = (gradient.add_ if own else gradient.add)(momentum_buffer, alpha=momentum)
    else:
        direction = momentum_buffer
    weight.add_(direction, alpha=-lr)


def _towards(
    weight: Tensor, gradient: Tensor, weight_decay: float, maximize: bool, clip: Tensor | None
) -> Tensor:
    """The gradient, or one of its own, clipped, with the signs and the decay."""
    own = clip is not None
    gradient = _clipped(gradient, clip)
    if maximize:
        gradient = (gradient.neg_ if own else gradient.neg)()
    if weight_decay:
        gradient = (gradient.add_ if own or maximize else gradient.add)(weight, alpha=weight_decay)
    return gradient


def _clipped(gradient: Tensor, clip: Tensor | None) -> Tensor:
    return gradient if clip is None else gradient.mul(clip)


def sgd_fused(weight: Tensor, gradient: Tensor, lr: float, step: float, **hyperparameters: Any) -> None:
    _sgd_fused(weight, gradient, [], lr, step, momentum=0.0, dampening=0.0, nesterov=False, **hyperparameters)


def sgd_momentum_fused(
    weight: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    _sgd_fused(weight, gradient, [momentum_buffer], lr, step, **hyperparameters)


def _sgd_fused(
    weight: Tensor,
    gradient: Tensor,
    buffers: list[Tensor],
    lr: float,
    step: float,
    *,
    maximize: bool = False,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    keywords = {"is_first_step": bool(buffers) and step == 1, **hyperparameters}
    fused_sgd([weight], [_clipped(gradient, clip)], buffers, lr=lr, maximize=maximize, **keywords)


def on_master(
    weight: Tensor,
    gradient: Tensor,
    *rest: Any,
    rule: str,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    """A rule by its name on the float32 master of a weight of less precision. rest: as the rule's, the master
    before the step's numbers."""
    *states, master, lr, step = rest
    RULES[rule](master, _clipped(gradient, clip).float(), *states, lr, step, **hyperparameters)
    weight.copy_(master)


def on_average(
    weight: Tensor, gradient: Tensor, *rest: Any, of: str, decay: float, **hyperparameters: Any
) -> None:
    """A rule by its name, then the moving average of the weight, or of its master. rest: as the rule's, the
    average before the step's numbers."""
    *states, average, lr, step = rest
    RULES[of](weight, gradient, *states, lr, step, **hyperparameters)
    average.lerp_(states[-1] if of == on_master.__name__ else weight, 1 - decay)


def if_finite(
    weight: Tensor, gradient: Tensor, *rest: Any, update: str, infinite: Tensor, **hyperparameters: Any
) -> None:
    """A rule by its name, where no gradient is infinite."""
    if not infinite:
        RULES[update](weight, gradient, *rest, **hyperparameters)


class Effort(NamedTuple):
    """passes: how often a rule reads or writes as many bytes as the gradient has.
    temporaries: as many bytes it takes beside its inputs."""

    passes: int
    temporaries: int


ADAMW, ADAMW_FUSED = Effort(20, 1), Effort(7, 0)
"""With weight decay, as PyTorch's default is."""


def is_fused(target: Any, keywords: Mapping[str, Any]) -> bool:
    """Whether an update ends in a fused kernel."""
    named = {keywords.get(name) for name in ("update", "of", "on", "rule")}
    return any(rule is target or rule.__name__ in named for rule in _FUSED)


def effort(target: Any, keywords: Mapping[str, Any]) -> Effort:
    """Counted from the lines above, one operation of PyTorch at a time; a fused kernel reads and writes each
    tensor once."""
    if target is if_finite:
        return effort(RULES[keywords["update"]], keywords)
    clip = 2 * ("clip" in keywords)
    if target is on_average:
        inner = effort(RULES[keywords["of"]], keywords)
        return Effort(inner.passes + 3 * (1 + (keywords["of"] == on_master.__name__)), inner.temporaries)
    if target is on_master:  # of numbers twice as long, one copy of them the gradient, one back to the weight
        inner = effort(RULES[keywords["rule"]], {k: v for k, v in keywords.items() if k != "clip"})
        return Effort(2 * inner.passes + 6 + clip, 2 * inner.temporaries + 2)
    if target in _FUSED:
        return Effort(_FUSED[target] + clip, int(clip > 0))
    decay, maximize = keywords["weight_decay"] != 0, 2 * bool(keywords.get("maximize"))
    if target in (adamw, adamw_amsgrad):
        passes = ADAMW.passes - (0 if decay else 2) + (decay and not keywords.get("decoupled", True))
        return Effort(passes + maximize + clip + 3 * (target is adamw_amsgrad), ADAMW.temporaries)
    own = int(decay or bool(maximize or clip))
    if target is sgd:
        return Effort(3 + 3 * decay + maximize + clip, own)
    nesterov = bool(keywords["nesterov"])
    return Effort(8 + 3 * decay + 3 * nesterov + maximize + clip, int(own or nesterov))


RULES: dict[str, Callable[..., None]] = {
    rule.__name__: rule
    for rule in (
        adamw,
        adamw_amsgrad,
        adamw_fused,
        adamw_fused_amsgrad,
        sgd,
        sgd_momentum,
        sgd_fused,
        sgd_momentum_fused,
        on_master,
        on_average,
    )
}
_FUSED = {adamw_fused: ADAMW_FUSED.passes, adamw_fused_amsgrad: 9, sgd_fused: 3, sgd_momentum_fused: 5}
