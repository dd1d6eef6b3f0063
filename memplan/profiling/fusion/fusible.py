"""Calls that one compiled kernel can contain: those that pass over their tensors element by element or sum
them up.

Not such are calls that draw random numbers, change anything in place, or add where indices lead: that sum has
no fixed order on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch

from ...graphs.graph import Phase
from ...program.program import Call, Operation, Program, refs
from ...torch_support.torch_operators import FUSIBLE_PRIVATE, OpOverload

_POINTWISE = {
    *("clamp_max", "clamp_min", "elu_backward", "fill", "hardsigmoid_backward", "hardswish_backward"),
    *("hardtanh_backward", "leaky_relu_backward", "log_sigmoid_backward", "masked_fill", "mish_backward"),
    *("softplus_backward", "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"),
    *("ones", "zeros", "full", "ones_like", "zeros_like", "full_like", "new_zeros", "new_ones", "new_full"),
    *("scalar_tensor", "arange", "tril", "triu", "cat", "constant_pad_nd", "slice_backward"),
    *("select_backward", "repeat", "upsample_nearest2d"),
    *FUSIBLE_PRIVATE["pointwise"],
}
"""Those that PyTorch does not tag as pointwise, or that move elements without a sum."""

_SUMMING = {
    *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"),
    *("native_batch_norm_backward", "sum", "mean", "amax", "amin", "var", "var_mean", "std"),
    *FUSIBLE_PRIVATE["summing"],
}

_VIEWS = {
    *("view", "expand", "permute", "transpose", "t", "slice", "select", "unsqueeze", "squeeze", "split"),
    *("split_with_sizes", "unbind", "detach", "alias", "chunk"),
    *FUSIBLE_PRIVATE["views"],
}


def is_pointwise(call: Call) -> bool:
    """Tell whether each element of the result follows from few elements, so that it is cheap to recompute."""
    target = call.target
    # Operators of other libraries may do anything.
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return False
    return torch.Tag.pointwise in target.tags or _name(target) in _POINTWISE


def sums_up(call: Call) -> bool:
    """Tell whether the call passes over its inputs more than once."""
    target = call.target
    return isinstance(target, OpOverload) and target.namespace == "aten" and _name(target) in _SUMMING


def is_fusible(program: Program, operation: Operation) -> bool:
    call = operation.call
    if operation.phase not in (Phase.FORWARD, Phase.BACKWARD) or operation.mutates or operation.random:
        return False
    if not (is_pointwise(call) or sums_up(call)):
        return False
    values = [*refs(call.arguments), *refs(call.keywords), *(v for v in call.outputs if v is not None)]
    return all(_is_usual(program, value) for value in values)


def is_view(call: Call) -> bool:
    """Tell whether a kernel can read through the call as a view."""
    return isinstance(call.target, OpOverload) and _name(call.target) in _VIEWS


def _is_usual(program: Program, value: int) -> bool:
    form = program.values[value]
    return form.device == program.device and form.dtype in _TYPES


_TYPES = {
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


def _name(target: Any) -> str:
    return target.overloadpacket.__name__
