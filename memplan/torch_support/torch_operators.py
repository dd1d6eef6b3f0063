"""Operators and what PyTorch knows of them: schemas, decompositions, FLOPs, autocast."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OperatorBase, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from .torch_trees import tensors_among

__all__ = ["OpOverload", "conv_flop_count", "flop_registry", "sdpa_backward_flop_count", "sdpa_flop_count"]

OPERATORS = (OperatorBase, OpOverloadPacket)
"""Classes of operators, which fill attributes of theirs when they are first asked."""

_DEVICE_OF = torch.ops.prim.device.default


def asks_for_device(operator: Any, args: Sequence[Any]) -> bool:
    """Tell whether PyTorch asks for a fake tensor's device, as for each call several times.

    Answer by `device_of_fake`, else the question goes through all modes.
    """
    return operator is _DEVICE_OF and type(args[0]) is FakeTensor


aten: Any = torch.ops.aten

ASKS_FOR_A_NUMBER = aten._local_scalar_dense.default
"""`.item()`."""

FUNCTIONAL_BATCH_NORM = aten._native_batch_norm_legit_functional.default
"""Batch norm that returns its new statistics."""

GROUPED_PRODUCT = getattr(getattr(aten, "_grouped_mm", None), "default", None)
"""Matrix products in groups, since torch 2.8."""

SPLITS_THAT_DENY_IT = (aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
"""They return views as if these were none; `unsafe_chunk` is made of them."""

UNIQUE = aten._unique2.default
"""`unique`."""

CTC_LOSS, CTC_LOSS_BACKWARD = aten._ctc_loss.default, aten._ctc_loss_backward.default
"""CTC losses of lengths as numbers."""

PACK, PAD_PACKED = "_pack_padded_sequence", "_pad_packed_sequence"
"""Functions that torch.nn.utils.rnn calls."""

RESHAPING_VIEWS = (aten.view.default, aten._unsafe_view.default)
"""Operators that reshape without a copy."""

OLD_CONVOLUTION = aten._convolution

ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_fused_attention_overrideable,
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
)
"""Fused attention, of whose FLOPs torch's registry lacks some and counts causal ones twice."""

EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward
EFFICIENT_ATTENTION = (aten._scaled_dot_product_efficient_attention, EFFICIENT_BACKWARD)

TO_COPY = aten._to_copy.default

SOFTMAX_BACKWARD = aten._softmax_backward_data

SOFTMAXES = (aten._softmax, SOFTMAX_BACKWARD, aten._log_softmax, aten._log_softmax_backward_data)

BATCH_NORMS = (aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional)
"""Batch norm in training, besides the public `native_batch_norm`."""

ATTENTION_BACKWARD = (
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten._scaled_dot_product_fused_attention_overrideable_backward,
    aten._scaled_dot_product_flash_attention_backward,
    EFFICIENT_BACKWARD,
    aten._scaled_dot_product_cudnn_attention_backward,
)

FUSIBLE_PRIVATE = {
    "pointwise": ("_to_copy", "_prelu_kernel"),
    "summing": (
        *("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
        *("_safe_softmax", "_native_batch_norm_legit_functional", "_fused_rms_norm"),
    ),
    "views": ("_unsafe_view",),
}
"""Operators of ATen that Inductor compiles, by what they do."""

UNCHECKED_INDEX = (aten._unsafe_index, aten._unsafe_index_put)
"""Indexing that does not look whether indices are in range."""

CALLS_FOR_THE_ORDER = ("_functional_assert_", "_functional_sym_constrain_", "_make_dep_token")
"""Prefixes of names of aten's operators that give others a token to wait for, and compute nothing."""


def schema_of(operator: Any) -> Any:
    """Return an operator's schema: name, arguments and defaults, and whether it changes any."""
    return operator._schema


def written_tensors(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a call that the operator changes."""
    for place, argument in enumerate(schema_of(operator).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            # Arguments of a schema are in the order of positional ones, keywords after.
            given = kwargs.get(argument.name) if place >= len(args) else args[place]
            yield from tensors_among(given)


def functions_named(name: str) -> Iterator[Callable[..., Any]]:
    """Yield PyTorch's functions in C with an operator's name: of the package, of tensors, of `nn.functional`.

    Functions written in Python are not among them.
    """
    for place in (torch, torch.Tensor, torch._C._nn):
        function = getattr(place, name, None)
        if isinstance(function, BuiltinFunctionType | MethodDescriptorType):
            yield function


def inner_function(operator: Any) -> Callable[..., Any]:
    """Return the function in C that an operator's `__call__` calls, or the operator if it has none."""
    return getattr(operator, "_op", operator)


def can_decompose(operator: Any) -> bool:
    """Tell whether an operator is made of others, by its own rule."""
    return operator._can_decompose()


def norm_of(tensor: Tensor) -> Tensor:
    """Return the tensor's 2-norm, by the kernel with which `clip_grad_norm_` takes those of many."""
    return torch._foreach_norm([tensor], 2.0)[0]


def has_fake_kernel(name: str) -> bool:
    """Tell whether PyTorch knows the shapes of an operator's results; name: like `aten::mm`."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")


def overload(name: str) -> Any:
    """Return an ATen operator by its name: `mm`, `sum.dim_IntList`."""
    packet, _dot, overloaded = name.partition(".")
    return getattr(getattr(aten, packet), overloaded or "default")


@cache
def autocast_operators(key: str) -> frozenset[str]:
    """Return the names of the ATen operators that have an entry of their own for a dispatch key."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def autocast_excluded() -> Any:
    """Return a context in which the CPU's autocast is off, as in the kernels of its own operators."""
    keys: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


@contextmanager
def overriding_silently() -> Generator[None]:
    """Let kernels be overridden without the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        yield


def composite(operator: Any) -> Callable[..., Any]:
    """Return an operator's implementation by others, as in C++: Python's, `decompose`, can differ."""
    key: Any = torch._C.DispatchKey.CompositeImplicitAutograd
    return partial(operator._op_dk, key)


def kernel_made_of_others(operator: Any, device: str) -> Callable[..., Any] | None:
    """Return the kernel that an operator has for all devices, written by other operators.

    Returns None if it has one for this type of device alone, or no such kernel.
    """
    key, every = torch._C._dispatch_key_for_device(device), "CompositeExplicitAutograd"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    # A kernel of this device's own would be taken instead.
    if has(operator.name(), key) or not has(operator.name(), every):
        return None
    kernel: Any = torch.library.get_kernel(operator, key)
    # Of the device alone: the caller's set has autograd and the modes of a trace too.
    keys: Any = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(kernel.call_boxed, keys)


CAST: Any = torch.ops.aten._to_copy.default
"""The operator that `to` calls for another dtype or device."""
