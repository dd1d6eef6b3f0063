"""Batch norms in functional form: the running statistics come out as results instead of changing in place.

PyTorch's operators change them without declaring it in their schema, so no functionalising pass sees it. For
the CPU and CUDA's own kernel PyTorch has a functional form; for cuDNN's it is made here, around the same
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...torch_support.torch_operators import FUNCTIONAL_BATCH_NORM

aten: Any = torch.ops.aten

MEAN, VARIANCE, TRAINING = 3, 4, 5
"""Positions of the arguments, the same in all batch norms."""


@torch.library.custom_op("memplan::cudnn_batch_norm", mutates_args=())
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run cuDNN's batch norm in functional form.

    Returns output, saved mean, saved variance, cuDNN's reserve, new running mean, new running variance.
    """
    new = mean.clone(), variance.clone()  # the kernel changes these in place
    made = aten.cudnn_batch_norm.default(x, weight, bias, *new, training, momentum, epsilon)
    return (*made, *new)


@cudnn_batch_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Any, mean: Tensor, variance: Tensor, *_numbers: Any) -> Any:
    reserve = x.new_empty((0,), dtype=torch.uint8)
    statistics = (torch.empty_like(each) for each in (mean, variance, mean, variance))
    saved_mean, saved_variance, new_mean, new_variance = statistics
    return torch.empty_like(x), saved_mean, saved_variance, reserve, new_mean, new_variance


FUNCTIONAL: Mapping[Any, Any] = {
    aten.native_batch_norm.default: FUNCTIONAL_BATCH_NORM,
    aten.cudnn_batch_norm.default: torch.ops.memplan.cudnn_batch_norm.default,
}
"""Per batch norm the form whose last two results are the new statistics."""


def planned_target(target: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the operator that a program has for this one: the functional form of a batch norm that
    updates statistics.
    """
    if target not in FUNCTIONAL or not arguments[TRAINING]:
        return target
    return target if arguments[MEAN] is None or arguments[VARIANCE] is None else FUNCTIONAL[target]


def batch_norm(target: Any, arguments: tuple[Any, ...]) -> Any:
    """Run a batch norm and return what `target` returns.

    The change of its statistics, if any, is a separate in-place operation, as a schema declares it.
    """
    functional = planned_target(target, arguments)
    if functional is target:
        return target(*arguments)
    mean, variance = arguments[MEAN], arguments[VARIANCE]
    *results, new_mean, new_variance = functional(*arguments)
    mean.copy_(new_mean)
    variance.copy_(new_variance)
    return tuple(results)
