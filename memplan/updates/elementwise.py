"""Elementwise operations of updates: PyTorch's kernels for one tensor, or its kernels for lists of tensors.

`torch.optim` takes the latter by default on CUDA. There the two round differently (a division by a number is
a multiplication by its reciprocal in one of them, say), so a planned update calls the kernels that the
optimizer would, with lists of one: each element is computed by itself, whatever else is in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..torch_support.torch_optimizers import kernel_for_lists, takes_lists


class Elementwise(NamedTuple):
    """Elementwise operations; those with a trailing underscore change their first tensor in place."""

    neg: Callable[[Tensor], Tensor]
    neg_: Callable[[Tensor], object]
    add: Callable[..., Tensor]
    add_: Callable[..., object]
    mul: Callable[[Tensor, float | list[float]], Tensor]
    mul_: Callable[[Tensor, float | list[float] | Tensor], object]
    lerp: Callable[[Tensor, Tensor, float], Tensor]
    lerp_: Callable[[Tensor, Tensor, float], object]
    addcmul: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    addcmul_: Callable[[Tensor, Tensor, Tensor, float], object]
    maximum_: Callable[[Tensor, Tensor], object]
    sqrt: Callable[[Tensor], Tensor]
    sqrt_: Callable[[Tensor], object]
    reciprocal_: Callable[[Tensor], object]
    div_: Callable[[Tensor, float | Tensor], object]
    addcdiv_: Callable[[Tensor, Tensor, Tensor, float], object]
    addcdiv_of_all_: Callable[[Tensor, Tensor, Tensor, float], object]


_tensor: Any = torch.Tensor


def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: float) -> Tensor:
    return x.addcmul(a, b, value=value)


def _addcmul_(x: Tensor, a: Tensor, b: Tensor, value: float) -> None:
    x.addcmul_(a, b, value=value)


def _maximum_(x: Tensor, other: Tensor) -> None:
    torch.maximum(x, other, out=x)


def _addcdiv_(x: Tensor, a: Tensor, b: Tensor, value: float) -> None:
    x.addcdiv_(a, b, value=value)


SINGLE = Elementwise(
    neg=_tensor.neg,
    neg_=_tensor.neg_,
    add=_tensor.add,
    add_=_tensor.add_,
    mul=_tensor.mul,
    mul_=_tensor.mul_,
    lerp=_tensor.lerp,
    lerp_=_tensor.lerp_,
    addcmul=_addcmul,
    addcmul_=_addcmul_,
    maximum_=_maximum_,
    sqrt=_tensor.sqrt,
    sqrt_=_tensor.sqrt_,
    reciprocal_=_tensor.reciprocal_,
    div_=_tensor.div_,
    addcdiv_=_addcdiv_,
    addcdiv_of_all_=_addcdiv_,
)
"""Kernels for one tensor."""


def _in_lists(name: str) -> Callable[..., Any]:
    """Return a kernel for lists as a function of tensors."""
    kernel = kernel_for_lists(name)

    def call(*operands: Any, **keywords: Any) -> Any:
        result = kernel(*([x] if isinstance(x, Tensor) else x for x in operands), **keywords)
        return result[0] if result else None  # kernels that work in place return nothing

    return call


# torch.optim gives these two kernels a number per tensor: one number for all is another kernel.
def _div_in_lists(x: Tensor, divisor: float | Tensor) -> None:
    kernel_for_lists("div_")([x], [divisor])


def _addcdiv_in_lists(x: Tensor, a: Tensor, b: Tensor, value: float) -> None:
    kernel_for_lists("addcdiv_")([x], [a], [b], [value])


LISTS = Elementwise(
    neg=_in_lists("neg"),
    neg_=_in_lists("neg_"),
    add=_in_lists("add"),
    add_=_in_lists("add_"),
    mul=_in_lists("mul"),
    mul_=_in_lists("mul_"),
    lerp=_in_lists("lerp"),
    lerp_=_in_lists("lerp_"),
    addcmul=_in_lists("addcmul"),
    addcmul_=_in_lists("addcmul_"),
    maximum_=_in_lists("maximum_"),
    sqrt=_in_lists("sqrt"),
    sqrt_=_in_lists("sqrt_"),
    reciprocal_=_in_lists("reciprocal_"),
    div_=_div_in_lists,
    addcdiv_=_addcdiv_in_lists,
    addcdiv_of_all_=_in_lists("addcdiv_"),  # one number for all tensors
)
"""Kernels for lists, given lists of one."""


def elementwise(foreach: bool) -> Elementwise:
    """Return the kernels for lists if `foreach`, else those for one tensor."""
    return LISTS if foreach else SINGLE


def is_foreach(group: Mapping[str, Any]) -> bool:
    """Tell whether `torch.optim` would step a parameter group by kernels for lists of tensors."""
    if "foreach" not in group or group.get("fused"):
        return False
    if group["foreach"] is not None:
        return bool(group["foreach"])
    # Only where neither was chosen PyTorch chooses, and never for a rate that is a tensor.
    chosen = group.get("fused") is not None or isinstance(group["lr"], Tensor)
    return not chosen and takes_lists(group["params"])
