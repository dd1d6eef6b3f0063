"""Muon, by PyTorch's own function of `torch.optim.Muon`: of weights with two dimensions.

    momentum_buffer ← momentum · momentum_buffer + (1 - momentum) · gradient
    direction       = momentum_buffer, or with Nesterov's momentum the gradient moved towards it
    weight          ← (1 - lr · weight_decay) · weight - c · lr · NewtonSchulz(direction)

The iteration of Newton and Schulz makes all singular values about one, in bfloat16.

Reference: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...program.program import Target
from ...torch_support.torch_optimizers import muon as torch_muon
from ..planned_optimizer import (
    Effort,
    Group,
    PlannedOptimizer,
    Settings,
    UpdateFunction,
    clipped,
    rate_as_given,
)


def muon(
    weight: Tensor,
    gradient: Tensor,
    momentum_buffer: Tensor,
    lr: float,
    step: float,
    *,
    lr_dtype: torch.dtype | None = None,
    clip: Tensor | None = None,
    **hyperparameters: Any,
) -> None:
    """Update as Muon.

    lr_dtype: of a rate that is a tensor, whose products are rounded to it.
    """
    torch_muon(
        [weight],
        [clipped(gradient, clip)],
        [momentum_buffer],
        lr=rate_as_given(lr, lr_dtype),
        has_complex=False,
        **hyperparameters,
    )


_CONSTANTS = ("nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn")


def _choose(
    group: Group, settings: Settings, _weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("weight_decay", "momentum", "eps") | {name: group[name] for name in _CONSTANTS}
    if isinstance(group["lr"], Tensor):
        keywords["lr_dtype"] = group["lr"].dtype
    return muon, ("momentum_buffer",), keywords


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes of a square weight in bfloat16, without its products of matrices."""
    clip = int("clip" in keywords)
    return Effort(16 + 6 * keywords["ns_steps"] + 2 * clip, 4 + clip)


def _flops(shape: Sequence[int], keywords: Mapping[str, Any]) -> int:
    """Count the three products of each iteration: X·Xᵀ, its square, and that times X."""
    rows, columns = sorted(shape)  # the iteration transposes a tall weight
    # Two FLOPs per multiplication: twice rows² · columns, once rows³.
    return int(keywords["ns_steps"]) * (4 * rows**2 * columns + 2 * rows**3)


def _takes(weight: Tensor) -> bool:
    return weight.dim() == 2


OPTIMIZER = PlannedOptimizer(
    title="Muon",
    make=torch.optim.Muon,
    hyperparameters=("lr", "weight_decay", "momentum", "nesterov", "eps"),
    numbers=("lr", "weight_decay", "momentum", "eps"),
    choose=_choose,
    functions=(UpdateFunction(muon, _effort, flops=_flops),),
    constants=_CONSTANTS,
    zeros=("weight_decay",),
    by_element=False,
    takes=_takes,
)
