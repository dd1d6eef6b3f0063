"""Adafactor, as `transformers.optimization.Adafactor` computes it: rates by the step or by the weight's size,
and a first moment if asked for. Its numbers are float32 whatever the weight is.

    exp_avg_sq_row ← beta · exp_avg_sq_row + (1 - beta) · mean of gradient² over columns
    exp_avg_sq_col ← likewise over rows
    RMS            = that of the weight before the update

Reference: Shazeer, Stern, "Adafactor: adaptive learning rates with sublinear memory cost", ICML 2018,
arXiv:1804.04235.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ...program.program import Target
from ..planned_optimizer import (
    Effort,
    Form,
    Group,
    PlannedOptimizer,
    Settings,
    UpdateFunction,
    clipped,
)

_PACKAGE = "transformers.optimization"

_LOW = (torch.float16, torch.bfloat16)


def adafactor_hf(
    weight: Tensor,
    gradient: Tensor,
    *rest: Any,
    eps1: float,
    eps2: float,
    clip_threshold: float,
    decay_rate: float,
    weight_decay: float,
    beta1: float | None = None,
    factored: bool = False,
    scaled: bool = False,
    relative: bool = False,
    warm_up: bool = False,
    low: bool = False,
    clip: Tensor | None = None,
) -> None:
    """Update as Adafactor of transformers, one operation of PyTorch after the other.

    rest: the first moment if there is one, the second of rows and of columns or of all, RMS; lr, step.
    beta1: None without a first moment.
    scaled: whether the rate goes by the weight's size.
    relative: whether it goes by the step; with `warm_up` it rises first.
    low: whether the weight is of less than float32.
    """
    *states, size, lr, step = rest
    gradient = clipped(gradient, clip)
    gradient, master = (gradient.float(), weight.float()) if low else (gradient, weight)
    size.copy_(_rms(master))
    rate: Any = min(1e-6 * step if warm_up else 1e-2, 1.0 / sqrt(step)) if relative else lr
    # A tensor if it is the larger: its product rounds to float32, the other one to Python's double.
    rate = (max(eps2, size) if scaled else 1.0) * rate
    beta = 1.0 - step**decay_rate
    update = (gradient**2) + eps1
    if factored:
        rows, columns = states[-2:]
        rows.mul_(beta).add_(update.mean(dim=-1), alpha=1.0 - beta)
        columns.mul_(beta).add_(update.mean(dim=-2), alpha=1.0 - beta)
        of_rows = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        update = torch.mul(of_rows, columns.unsqueeze(-2).rsqrt()).mul_(gradient)
    else:
        states[-1].mul_(beta).add_(update, alpha=1.0 - beta)
        update = states[-1].rsqrt().mul_(gradient)
    update.div_((_rms(update) / clip_threshold).clamp_(min=1.0))
    update.mul_(rate)
    if beta1 is not None:
        states[0].mul_(beta1).add_(update, alpha=1 - beta1)
        update = states[0]
    if weight_decay:
        master.add_(master, alpha=-weight_decay * rate)
    master.add_(-update)
    if low:
        weight.copy_(master)


def _rms(tensor: Tensor) -> Tensor:
    return tensor.norm(2) / (tensor.numel() ** 0.5)


def _make(parameters: Any, **hyperparameters: Any) -> torch.optim.Optimizer:
    if "lr" in hyperparameters:
        hyperparameters |= {"relative_step": False, "scale_parameter": False}  # as its Trainer
    return import_module(_PACKAGE).Adafactor(parameters, **hyperparameters)


def _options(_optimizer: torch.optim.Optimizer, group: Group) -> Group:
    eps1, eps2 = group["eps"]
    own = {"lr": group["lr"] or 0.0, "beta1": group["beta1"] or 0.0, "has_beta1": group["beta1"] is not None}
    return {**group, **own, "eps1": eps1, "eps2": eps2}


def _choose(
    group: Group, settings: Settings, weight: Tensor
) -> tuple[Target, tuple[str, ...], dict[str, Any]]:
    keywords = settings("eps1", "eps2", "clip_threshold", "decay_rate", "weight_decay")
    if group["has_beta1"]:
        keywords |= settings("beta1")
    switches = {
        "factored": weight.dim() > 1,
        "scaled": group["scale_parameter"],
        "relative": group["relative_step"],
        "warm_up": group["warmup_init"],
        "low": weight.dtype in _LOW,
    }
    keywords |= {name: True for name, on in switches.items() if on}
    return adafactor_hf, tuple(_forms(group, weight)), keywords


def _forms(group: Group, weight: Tensor) -> Mapping[str, Form]:
    dtype = torch.float32 if weight.dtype in _LOW else weight.dtype
    found = {"exp_avg": Form(None, dtype)} if group["has_beta1"] else {}
    if weight.dim() > 1:
        *rest, rows, columns = weight.shape
        found["exp_avg_sq_row"] = Form((*rest, rows), dtype)
        found["exp_avg_sq_col"] = Form((*rest, columns), dtype)
    else:
        found["exp_avg_sq"] = Form(None, dtype)
    return {**found, "RMS": Form((), dtype)}


def _effort(keywords: Mapping[str, Any]) -> Effort:
    """Count the passes, one operation at a time, in units of a gradient that may be half as long as what is
    computed with.
    """
    clip, low = int("clip" in keywords), bool(keywords.get("low"))
    passes = 24 + 3 * (keywords["weight_decay"] != 0) + 5 * ("beta1" in keywords)
    return Effort((2 * passes + 8 if low else passes) + 2 * clip, (8 if low else 2) + clip)


def _unplanned(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a rate is a tensor, or a parameter complex."""
    return any(
        isinstance(group["lr"], Tensor) or any(weight.is_complex() for weight in group["params"])
        for group in optimizer.param_groups
    )


OPTIMIZER = PlannedOptimizer(
    title="transformers' Adafactor",
    make=_make,
    hyperparameters=("lr", "weight_decay"),
    numbers=("lr", "weight_decay", "eps1", "eps2", "clip_threshold", "decay_rate", "beta1"),
    choose=_choose,
    functions=(UpdateFunction(adafactor_hf, _effort),),
    forms=_forms,
    options=_options,
    counts=True,
    counts_in_int=True,
    switches=("has_beta1", "scale_parameter", "relative_step", "warmup_init"),
    zeros=("weight_decay",),
    unplanned=_unplanned,
    classes=("transformers.optimization.Adafactor",),
    by_element=False,
    probes=((67,), (5, 13)),
    package=_PACKAGE,
)
