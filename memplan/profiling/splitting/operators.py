"""The table of operators that split, by their names in PyTorch's `aten`; each family has a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...devices.calls.in_layout import changed_by
from ...devices.calls.randomness import draws
from ...program.program import Call
from ...torch_support.torch_operators import OpOverload, schema_of
from .attention import ATTENTION
from .images import IMAGES
from .losses import LOSSES
from .own import OWN, changed
from .places import PLACES
from .products import PRODUCTS
from .reductions import REDUCTIONS
from .rows import Along
from .rules import Pattern, Rule, Site, name_of, pointwise, without_gaps
from .views import VIEWS

__all__ = ["FORM_ONLY", "name_of", "pattern"]

FORM_ONLY = frozenset(
    ("ones_like", "zeros_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
)
"""Operators that read the form of a tensor and not what is in it."""

POINTWISE = (
    *("clone", "to_copy", "ones_like", "zeros_like", "full_like", "empty_like", "masked_fill"),
    *("clamp_min", "clamp_max", "floor_divide", "rsub", "where", "complex", "hardswish", "prelu_kernel"),
    *("silu_backward", "tanh_backward", "sigmoid_backward", "threshold_backward"),
    *("elu_backward", "leaky_relu_backward", "hardtanh_backward", "softplus_backward", "mish_backward"),
    *("log_sigmoid_forward", "log_sigmoid_backward", "hardswish_backward", "hardsigmoid_backward"),
    *("prelu_kernel_backward", "softshrink_backward", "hardshrink_backward"),
)
"""Those that PyTorch does not tag as pointwise, some of them in some versions only."""


def dense(site: Site, at: int, along: Along) -> Pattern | None:
    """Split `gelu`: what has gaps gets other bits on a CPU, whatever its size."""
    found = pointwise(site, at, along)
    return found and without_gaps(site, found)


DENSE = ("gelu", "gelu_backward")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(DENSE, dense),
    **PRODUCTS,
    **VIEWS,
    **REDUCTIONS,
    **LOSSES,
    **PLACES,
    **IMAGES,
    **ATTENTION,
}
"""By name, without the underscore that some begin with.

Any other operator that PyTorch tags as pointwise, and that changes nothing in place, is pointwise.
"""


def pattern(call: Call, values: Any, at: int, along: Along) -> Pattern | None:
    """Return how a call splits if one of its tensors does so along these rows; None if it does not."""
    rule = _rule(call.target)
    if rule is None or draws(call.target, call.arguments, call.keywords):
        return None
    if not along.rows(values[at].shape):
        return None  # no piece has any of them
    return rule(Site(call, values), at, along)


def _rule(target: Any) -> Rule | None:
    if not isinstance(target, OpOverload):
        return OWN.get(target)
    if target.namespace != "aten":
        return None if changed_by(target) is None else changed
    if schema_of(target).is_mutable:
        return None
    name = target.overloadpacket.__name__.lstrip("_")
    # By overload: `max` of two tensors is pointwise, `max` along a dimension is not.
    tagged = torch.Tag.pointwise in target.tags and name not in DENSE
    return pointwise if tagged else RULES.get(name)
