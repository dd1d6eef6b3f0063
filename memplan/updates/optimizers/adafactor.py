"""Adafactor, by PyTorch's own function of `torch.optim.Adafactor`.

    row_var ← row_var + step^beta2_decay · (mean of gradient² over columns - row_var)
    col_var ← likewise over rows
    weight  ← (1 - lr · weight_decay) · weight - alpha · gradient / √(row_var · col_var / mean of row_var)

alpha goes by the norm of the weight, and is less where the direction would be too long. A weight with one
dimension has the whole `variance`.

Reference: Shazeer, Stern, "Adafactor: adaptive learning rates with sublinear memory cost", ICML 2018,
arXiv:1804.04235, algorithms 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...program.program import Target
from ...torch_support.torch_optimizers import adafactor as torch_adafactor
from ..planned_optimizer import (
    Effort,
    Form,
    Group,
    PlannedOptimizer,
    Settings,
    UpdateFunction,
    clipped,
    rate_as_given,
)


def adafactor(
    weight: Tensor,
    gradient: Tensor,
    variance: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update a weight of less than two dimensions as Adafactor."""
    _update(weight, gradient, (None, None, variance), (lr, step), **hyperparameters)


def adafactor_factored(
    weight: Tensor,
    gradient: Tensor,
    row_var: Tensor,
    col_var: Tensor,
    lr: float,
    step: float,
    **hyperparameters: Any,
) -> None:
    """Update a weight as Adafactor, with a second moment of rows and one of columns."""
    _update(weight, gradient, (row_var, col_var, None), (lr, step), **hyperparameters)


def _update(
    weight: Tensor,
    gradient: Tensor,
    states: tuple[Tensor | None, Tensor | None, Tensor | None],
    numbers: tuple[float, float],
    *,
    eps1: float | None = None,
    maximize: bool = False,
    lr_dtype: torch.dtype | None = None,
    clip: Tensor | None = None,
    foreach: bool = False,
    **hyperparameters: Any,
) -> None:
    """Update a weight.

    states: of rows, of columns, of all elements.
    numbers: learning rate and count of the step.
    eps1: None for that of the weight's dtype.
    """
    lr, step = numbers
    # The function counts by itself.
    before = torch.full((), step - 1, dtype=torch.float64, device="cpu")
    torch_adafactor(
        [weight],
        [clipped(gradient, clip)],
        row_vars=[states[0]],
        col_vars=[states[1]],
        variances=[states[2]],
        state_steps=[before],
        lr=rate_as_given(lr, lr_dtype),
        # None is that of the weight's dtype, which the function's type does not say.
        eps1=eps1,  # pyright: ignore[reportArgumentType]
        maximize=maximize,
        foreach=foreach,
        **hyperparameters,
    )


def _options(_optimizer: torch.optim.Optimizer, group: Group) -> Group:
    # None means kernels for single tensors, other than in PyTorch's other optimizers.
    eps1, eps2 = group["eps"]
    return {
        **group,
        "foreach": bool(group["foreach"]),
        "eps1": eps1 or 0.0,
        "eps2": eps2,
        "eps_of_dtype": eps1 is None,
    }


def _choose(
    group: Group, settings: Settings, weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("weight_decay", "beta2_decay", "eps2", "d")
    if not group["eps_of_dtype"]:
        keywords |= settings("eps1")
    if isinstance(group["lr"], Tensor):
        keywords["lr_dtype"] = group["lr"].dtype
    if weight.dim() > 1:
        return adafactor_factored, ("row_var", "col_var"), keywords
    return adafactor, ("variance",), keywords


def _forms(_group: Group, weight: Tensor) -> Mapping[str, Form]:
    if weight.dim() <= 1:
        return {}
    *rest, rows, columns = weight.shape
    return {"row_var": Form((*rest, rows, 1)), "col_var": Form((*rest, 1, columns))}


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time."""
    changes = 2 * bool(keywords.get("maximize")) + 2 * ("clip" in keywords)
    decay = 2 * (keywords["weight_decay"] != 0)
    return Effort(18 + decay + changes, 2 + (changes > 0))


def _unplanned(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the first parameter's dtype decides a number of the others, which have another."""
    return any(
        group["eps"][0] is None and len({weight.dtype for weight in group["params"]}) > 1
        for group in optimizer.param_groups
    )


OPTIMIZER = PlannedOptimizer(
    title="Adafactor",
    make=torch.optim.Adafactor,
    hyperparameters=("lr", "weight_decay"),
    numbers=("lr", "weight_decay", "beta2_decay", "eps1", "eps2", "d"),
    choose=_choose,
    functions=(UpdateFunction(adafactor, _effort), UpdateFunction(adafactor_factored, _effort)),
    forms=_forms,
    options=_options,
    counts=True,
    switches=("eps_of_dtype", "maximize"),
    zeros=("weight_decay",),
    by_element=False,
    unplanned=_unplanned,
)
