"""The handover between the two halves of an iteration whose loss the caller's own graph computes.

    forward ─outputs─▶ handover ─cotangents─▶ backward
                          │  ▲
                  outputs ▼  │ their gradients
                       the caller

In a trace it is an operator: it reads the outputs and makes their gradients, the cotangents. A planned step
does not call it: the code of its schedule yields there (codegen/codegen.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("memplan::handover", mutates_args=())
def handover(differentiable: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """Return tensors of the forms of the cotangents.

    differentiable: the outputs that have a gradient.
    others: those that have none.
    """
    return list(map(torch.empty_like, differentiable))


@handover.register_fake
def _(differentiable: list[Tensor], _others: list[Tensor]) -> list[Tensor]:
    return list(map(torch.empty_like, differentiable))


HANDOVER: Any = torch.ops.memplan.handover.default


def example_cotangents(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return cotangents to compare two computations with: random numbers, the same for the same forms.

    No global generator advances.
    """
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    for name, output in outputs.items():
        # Drawn on the CPU and in row-major order: the numbers depend on neither device nor strides.
        numbers = torch.randn(output.shape, generator=generator, dtype=_drawn(output.dtype), device="cpu")
        found[name] = torch.empty_like(output, requires_grad=False).copy_(numbers)
    return found


def _drawn(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype that the CPU draws: float8 is not one."""
    return dtype if dtype.is_complex or dtype.itemsize > 1 else torch.float32


def ordered(outputs: Mapping[str, Tensor]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of the outputs that require a gradient, and of the others."""
    differentiable = [name for name, tensor in outputs.items() if tensor.requires_grad]
    return differentiable, [name for name in outputs if name not in differentiable]
