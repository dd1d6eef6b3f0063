"""Autocast by CUDA's lists of operators, on tensors that C++ takes for the CPU's.

In the dispatcher the entries of `AutocastCPU` are replaced where CUDA's differ (ATen/autocast_mode.h), and
`torch.autocast("cuda")` turns that key on. Policies, by what becomes of the floating-point tensors:

    LOWER            lower precision
    FLOAT32          float32
    DTYPE_FLOAT32    the operator is asked for a result in float32; it casts by itself
    WIDEST           the widest dtype among them

An operator on the CPU's list only runs as it is. Casts to float32 are never cached; those of the operators
in LOWER are the CPU's own, which caches weights.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ...torch_support.torch_operators import (
    autocast_excluded,
    autocast_operators,
    overload,
    overriding_silently,
)
from ...torch_support.torch_trees import tree_leaves, tree_map


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = _names("""
    _convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv
    linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
    _scaled_dot_product_flash_attention cudnn_convolution cudnn_convolution_transpose
""")
FLOAT32 = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
    nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
    _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
    upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa rms_norm
""")
DTYPE_FLOAT32 = _names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
""")
APPENDED_DTYPE = frozenset(("norm.Scalar", "norm.ScalarOpt_dim"))
"""Operators of which another overload takes the dtype, as its last argument."""
WIDEST = _names("""
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""")
BANNED = frozenset(("binary_cross_entropy",))

Kernel = Callable[..., Any]


@contextmanager
def cuda_autocast() -> Generator[None]:
    """Let `torch.autocast("cuda")` cast the tensors that C++ takes for the CPU's, by CUDA's lists."""
    library: Any = torch.library.Library("aten", "IMPL")
    on_cpu = autocast_operators("AutocastCPU")
    try:
        with overriding_silently():
            for name in sorted(on_cpu | autocast_operators("AutocastCUDA")):
                kernel = _kernel(name, on_cpu)
                if kernel is not None:
                    library.impl(name, kernel, "AutocastCPU", allow_override=True)
        with _switches():
            yield
    finally:
        library._destroy()  # the kernels before are in force from here on


def _kernel(name: str, on_cpu: frozenset[str]) -> Kernel | None:
    """Return the kernel for an operator's entry; None if the CPU's own does the same."""
    operator = overload(name)
    if name in LOWER:
        return None if name in on_cpu else _casting(operator, lower=True)
    if name in FLOAT32:
        return None if name in on_cpu else _casting(operator, lower=False)
    if name in DTYPE_FLOAT32:
        return _asking(operator)
    if name in APPENDED_DTYPE:
        return _appending(operator, overload(f"{name.split('.')[0]}.{_WITH_DTYPE[name]}"))
    if name in WIDEST:
        return _promoting(operator)
    if name in BANNED:
        return _refusing(operator)
    fallthrough: Any = torch.library.fallthrough_kernel
    return fallthrough


_WITH_DTYPE = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}


def _eligible(value: Any) -> bool:
    # CUDA's autocast never casts float64.
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(arguments: Any, dtype: torch.dtype) -> Any:
    def cast(value: Any) -> Any:
        return value.to(dtype) if _eligible(value) else value

    return tree_map(cast, arguments)


def _casting(operator: Any, *, lower: bool) -> Kernel:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        dtype = torch.get_autocast_dtype("cuda") if lower else torch.float32
        with autocast_excluded():  # else the call comes back to this kernel
            return operator(*_cast(arguments, dtype), **_cast(keywords, dtype))

    return kernel


def _asking(operator: Any) -> Kernel:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        names = [argument.name for argument in operator._schema.arguments]
        place = names.index("dtype")
        asked = keywords.get("dtype", arguments[place] if place < len(arguments) else None)
        if _eligible(arguments[0]) and asked is None:
            arguments = arguments[:place]  # a None by position
            keywords = {**keywords, "dtype": torch.float32}
        with autocast_excluded():
            return operator(*arguments, **keywords)

    return kernel


def _appending(operator: Any, with_dtype: Any) -> Kernel:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        with autocast_excluded():
            if not _eligible(arguments[0]):
                return operator(*arguments, **keywords)
            defaults = [argument.default_value for argument in operator._schema.arguments[len(arguments) :]]
            return with_dtype(*arguments, *defaults, dtype=torch.float32)

    return kernel


def _promoting(operator: Any) -> Kernel:
    def kernel(*arguments: Any, **keywords: Any) -> Any:
        found = [leaf.dtype for leaf in tree_leaves((arguments, keywords)) if _eligible(leaf)]
        lower = torch.get_autocast_dtype("cuda")
        widest = torch.float32 if torch.float32 in found else lower
        with autocast_excluded():
            return operator(*_cast(arguments, widest), **_cast(keywords, widest))

    return kernel


def _refusing(operator: Any) -> Kernel:
    def kernel(*_arguments: Any, **_keywords: Any) -> Any:
        raise RuntimeError(
            f"{operator} is unsafe to autocast on CUDA: use binary_cross_entropy_with_logits, "
            "without the sigmoid"
        )

    return kernel


# ── switches ────────────────────────────────────────────────────────────────────────────────────────

_SLOTS = {"cuda": "cpu", "cpu": "xpu"}
"""Whose state in C++ holds the state of a device type: of the CPU's own autocast one that nothing reads."""


@contextmanager
def _switches() -> Generator[None]:
    """Let the functions that read and set autocast's state for "cuda" read and set the CPU's."""
    original = {name: getattr(torch, name) for name in (*_BY_TYPE, *_OF_CUDA, *_OF_CPU)}
    before = {
        slot: (original["is_autocast_enabled"](slot), original["get_autocast_dtype"](slot))
        for slot in _SLOTS.values()
    }

    def by_type(name: str) -> Callable[..., Any]:
        def function(*arguments: Any) -> Any:
            if arguments and isinstance(arguments[0], str):
                return original[name](_SLOTS.get(arguments[0], arguments[0]), *arguments[1:])
            return original[name](_SLOTS["cuda"], *arguments)

        return function

    def of(device: str, name: str) -> Callable[..., Any]:
        return lambda *arguments: original[name](_SLOTS[device], *arguments)

    replaced = {
        **{name: by_type(name) for name in _BY_TYPE},
        **{name: of("cuda", general) for name, general in _OF_CUDA.items()},
        **{name: of("cpu", general) for name, general in _OF_CPU.items()},
    }
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(patch.object(torch, name, function))
        stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
        replaced["set_autocast_enabled"]("cuda", False)
        replaced["set_autocast_enabled"]("cpu", False)
        # PyTorch's defaults.
        replaced["set_autocast_dtype"]("cuda", torch.float16)
        replaced["set_autocast_dtype"]("cpu", torch.bfloat16)
        try:
            yield
        finally:
            for slot, (enabled, dtype) in before.items():
                original["set_autocast_enabled"](slot, enabled)
                original["set_autocast_dtype"](slot, dtype)


_BY_TYPE = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
"""Functions that take a device type, in some of them cuda if it is left out."""
_OF_CUDA = {"get_autocast_gpu_dtype": "get_autocast_dtype", "set_autocast_gpu_dtype": "set_autocast_dtype"}
_OF_CPU = {
    "is_autocast_cpu_enabled": "is_autocast_enabled",
    "set_autocast_cpu_enabled": "set_autocast_enabled",
    "get_autocast_cpu_dtype": "get_autocast_dtype",
    "set_autocast_cpu_dtype": "set_autocast_dtype",
}
