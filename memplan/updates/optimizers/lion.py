"""Lion, as `lion_pytorch.Lion` and `timm.optim.Lion` compute it; torch has none.

    direction = sign(beta1 · exp_avg + (1 - beta1) · gradient)
    weight    ← (1 - lr · weight_decay) · weight - lr · direction
    exp_avg   ← beta2 · exp_avg + (1 - beta2) · gradient

Reference: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, arXiv:2302.06675,
algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
)


def lion(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    lr: float,
    step: float,
    *,
    beta1: float,
    beta2: float,
    weight_decay: float,
    interpolated: bool = False,
    maximize: bool = False,
    clip: Tensor | None = None,
    foreach: bool = False,
) -> None:
    """Update as Lion, one operation of PyTorch after the other.

    interpolated: averages by `lerp`, as timm takes them; lion-pytorch's products and sums have other bits.
    foreach: whether by PyTorch's kernels for lists of tensors.
    """
    kernels = elementwise(foreach)
    gradient = changed_gradient(
        weight, gradient, weight_decay=0.0, maximize=maximize, clip=clip, kernels=kernels
    )
    if weight_decay:
        kernels.mul_(weight, 1 - lr * weight_decay)
    # The direction is of the average before this step: weight first, average after it.
    if interpolated:
        kernels.add_(weight, kernels.lerp(exp_avg, gradient, 1 - beta1).sign_(), alpha=-lr)
        kernels.lerp_(exp_avg, gradient, 1 - beta2)
    else:
        weight.add_(exp_avg.mul(beta1).add_(gradient, alpha=1 - beta1).sign_(), alpha=-lr)
        exp_avg.mul_(beta2).add_(gradient, alpha=1 - beta2)


class Lion(torch.optim.Optimizer):
    """Lion for the command line, which has no other package to take it from. As lion-pytorch's by default."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not all(0 <= beta <= 1 for beta in betas):
            raise ValueError(f"lr={lr}, betas={betas}, weight_decay={weight_decay}: not all are in range")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is not None:
                    row = self.state[weight]
                    if "exp_avg" not in row:
                        row["exp_avg"] = torch.zeros_like(weight)
                    decay, numbers = group["weight_decay"], (group["lr"], 0.0)
                    rest = {"beta1": beta1, "beta2": beta2, "weight_decay": decay}
                    lion(weight, weight.grad, row["exp_avg"], *numbers, **rest)
        return loss


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("beta1", "beta2", "weight_decay")
    if "foreach" in group:  # only timm's groups have it
        keywords["interpolated"] = True
    return lion, ("exp_avg",), keywords


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time."""
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    passes = (11 if keywords.get("interpolated") else 15) + 2 * (keywords["weight_decay"] != 0)
    return Effort(passes + changes, 1 + (changes > 0))


def _unplanned(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an option asks for another rule, or a parameter is complex, for which the packages
    compute two rules.
    """
    if getattr(optimizer, "decoupled_wd", False):  # lion-pytorch's: the decay over the first rate
        return True
    return any(
        group.get("caution")
        or group.get("corrected_weight_decay")
        or isinstance(group["lr"], Tensor)
        or any(parameter.is_complex() for parameter in group["params"])
        for group in optimizer.param_groups
    )


OPTIMIZER = PlannedOptimizer(
    title="Lion",
    make=Lion,
    hyperparameters=("lr", "weight_decay", "betas"),
    numbers=("lr", "weight_decay", "beta1", "beta2"),
    choose=_choose,
    functions=(UpdateFunction(lion, _effort),),
    switches=("maximize", "caution", "corrected_weight_decay"),
    zeros=("weight_decay",),
    unplanned=_unplanned,
    classes=("lion_pytorch.lion_pytorch.Lion", "timm.optim.lion.Lion"),
)
