"""Optimizers and GradScaler: hooks of steps, kernels for lists, infinite gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim._adafactor import adafactor
from torch.optim._muon import muon
from torch.optim.optimizer import (
    _default_to_fused_or_foreach,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

__all__ = ("adafactor", "muon")

fused_adam: Any = torch._fused_adam_

fused_adamw: Any = torch._fused_adamw_

fused_sgd: Any = torch._fused_sgd_
"""Function that `torch.optim` calls with `fused=True`, on lists of tensors."""

HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes in which an optimizer keeps the hooks around its steps."""


def hooks_of_steps(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the hooks on the steps of this optimizer, and those of others than PyTorch on all steps."""
    every = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    # The profiler's hooks only name what is run.
    others = [hook for hook in every if getattr(hook, "__module__", "") != "torch.profiler"]
    return [*(hook for name in HOOKS_OF_STEPS for hook in getattr(optimizer, name).values()), *others]


def count_as_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Mark the optimizer as stepped: learning rate schedules warn of optimizers whose `step` was not
    called.
    """
    vars(optimizer)["_opt_called"] = True


def replace_step(optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> None:
    """Have an optimizer's `step` call this function; learning rate schedules take it for the optimizer's."""

    def replaced(_closure: Any = None) -> None:
        step()

    # Schedules would wrap it as a method, and those that have wrapped the own one warn of another.
    vars(replaced)["_wrapped_by_lr_sched"] = True
    vars(optimizer)["step"] = replaced
    count_as_stepped(optimizer)


def kernel_for_lists(name: str) -> Callable[..., Any]:
    """Return an elementwise kernel over lists of tensors; name: of the operation, like `add_`."""
    return getattr(torch, f"_foreach_{name}")


def takes_lists(parameters: Sequence[Tensor]) -> bool:
    """Tell whether optimizers step these parameters by kernels for lists (`foreach`) by default."""
    # Returns (fused, foreach); False: not differentiable.
    return _default_to_fused_or_foreach(list(parameters), False)[1]


def check_and_unscale(gradient: Tensor, infinite: Tensor, inverse: Tensor) -> None:
    """Multiply the gradient by the inverse scale in place, as `GradScaler.unscale_` does.

    infinite: set to 1 if the gradient is not finite.
    """
    torch._amp_foreach_non_finite_check_and_unscale_([gradient], infinite, inverse)


def takes_scaled_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether `GradScaler.step` leaves gradients as they are and hands the optimizer the scale."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def report_infinite(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, infinite: Tensor) -> None:
    """Record for `scaler.update()` whether gradients are infinite, as `scaler.step(optimizer)` does.

    infinite: 1.0 or 0.0.
    """
    scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {infinite.device: infinite}


def reported_infinite(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether `scaler.step(optimizer)` has found infinite gradients. Waits for the device."""
    return any(scaler._found_inf_per_device(optimizer).values())
