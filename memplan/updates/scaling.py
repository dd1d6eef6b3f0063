"""Gradients of a scaled loss: the very operations of `torch.amp.GradScaler`, a gradient at a time.

    dw2 · scale ─▶ unscale ─▶ dw2, infinite? ─┐
    dw1 · scale ─▶ unscale ─▶ dw1, infinite? ─┴▶ found ─▶ updates, which do nothing if one is

A gradient is unscaled into a copy and not in place, since what reads it may be recomputed. Infinite means not
finite: NaN too. The host reads whether one is, and waits for it once an iteration, as GradScaler does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..graphs.errors import InputError
from ..torch_support.torch_optimizers import check_and_unscale, takes_scaled_gradients
from .planned_optimizer import Rule


def unscale(
    gradient: Tensor, scale: Tensor, *, divides: bool = False, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradient, in a dtype of less rounding if asked for, and whether it is infinite.

    divides: by the scale, as the fused kernels do that GradScaler hands it to; else its inverse multiplies.
    """
    made = gradient.to(gradient.dtype if dtype is None else dtype, copy=True)
    infinite = torch.zeros((), dtype=torch.float32, device=gradient.device)
    # 1 changes no bits: the kernel only checks then. By way of double, as GradScaler.
    inverse = torch.ones_like(scale) if divides else scale.double().reciprocal().float()
    check_and_unscale(made, infinite, inverse)
    return made.div_(scale) if divides else made, infinite.bool()


class UnscaledGradients:
    """The target that returns to the host whether any gradient is infinite.

    waits: the caller waits for the device.
    """

    __name__ = "found"
    once = waits = True

    def __call__(self, *infinite: Tensor) -> Tensor:
        return torch.stack(infinite).any().cpu()


FOUND = UnscaledGradients()


def divided(optimizer: torch.optim.Optimizer, *, clip: bool) -> bool:
    """Tell whether GradScaler leaves unscaling to the optimizer's kernels; not of what is to be clipped."""
    return takes_scaled_gradients(optimizer) and not clip


def check_scaled(module: nn.Module, found: Mapping[str, Rule], *, divides: bool) -> None:
    """Raise InputError, one line, for weights whose gradients GradScaler does not unscale, or not in this
    way.
    """
    for name, rule in found.items():
        dtype = module.get_parameter(name).dtype if rule.dtype is None else rule.dtype
        if dtype == torch.float16 or (divides and dtype.itemsize < torch.float32.itemsize):
            raise InputError(
                f"scaler: {name} is {dtype}, whose gradients can't be unscaled: keep weights in float32 "
                "under autocast, or give master_weights=True"
            )
