"""The kernel that PyTorch chooses for attention on a GPU, by its own rules.

    cuDNN       float16, bfloat16; first choice from Hopper to datacenter Blackwell (9.x, 10.x)
    flash       float16, bfloat16 from 8.0 on; no mask
    efficient   float32 too, masks; bfloat16 from 8.0 on
    math        anything else: products and a softmax, with all scores in memory

`torch.nn.attention.sdpa_kernel` says which of them may run, and with `set_priority=True` in which order.

The order of the checks and their limits are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and
attention.cpp in PyTorch 2.13 with cuDNN 9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .capability import Capability
from .questions import Questions

aten: Any = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
FUSED_UP_TO = Capability(12, 1)


class Attention(NamedTuple):
    """Arguments of `scaled_dot_product_attention`.

    query: of shape (batch, heads, queries, width). key, value: of shape (batch, groups, keys, width).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    dropout: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    grouped: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def differentiated(self) -> bool:
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)


def attention(questions: Questions, call: Attention) -> Tensor:
    """Run attention by the operators that the GPU runs, of those that are enabled.

    Raises RuntimeError if none is, as PyTorch does.
    """
    backend = questions.answer(partial(_chosen, call))
    if backend is None:
        raise RuntimeError("no kernel that torch.nn.attention.sdpa_kernel allows can run this attention")
    return _KERNELS[backend][1](call)


def _chosen(call: Attention, capability: Capability) -> int | None:
    """Return the first kernel that fits, None if none does."""
    order = _order(call, capability)
    return next((backend for backend in order if _KERNELS[backend][0](call, capability)), None)


def _order(call: Attention, capability: Capability) -> list[int]:
    """Return the kernels in the order in which they are tried: the code's, if it has set one."""
    order = [backend for backend in torch._C._get_sdp_priority_order() if backend in _KERNELS]
    if order != _DEFAULT_ORDER:
        return order
    first = [_CUDNN] if capability.major in (9, 10) else []
    return [*first, _FLASH, _EFFICIENT, _CUDNN, _MATH]


# ── what fits ───────────────────────────────────────────────────────────────────────────────────────


def _fits_all(call: Attention, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Return whether any fused kernel can run: dtype, shapes, lengths."""
    query, key, value = call.tensors
    return (
        query.dtype in dtypes
        and query.dtype == key.dtype == value.dtype
        and query.dim() == key.dim() == value.dim() == 4
        and query.shape[0] == key.shape[0] == value.shape[0]
        and query.shape[2] > 0
        and key.shape[2] > 0
    )


def _heads_fit(call: Attention, *, grouped: bool) -> bool:
    """Return whether the numbers of heads are those of a kernel.

    grouped: it can share keys among heads.
    """
    query, key, value = (tensor.shape[1] for tensor in call.tensors)
    if call.grouped and grouped:
        return key == value and query % key == 0
    return query == key == value


def _dense(call: Attention, *, width_of_one: bool) -> bool:
    """Return whether the last dimensions have no gaps.

    width_of_one: a head of width 1 has none.
    """
    dense = all(tensor.stride(-1) == 1 for tensor in call.tensors)
    if width_of_one and call.query.shape[-1] == 1:
        dense = True
    return dense and (call.mask is None or call.mask.stride(-1) == 1 or call.mask.shape[-1] == 1)


def _fits_flash(call: Attention, capability: Capability) -> bool:
    query, key, value = call.tensors
    width = query.shape[-1]
    if not torch.backends.cuda.flash_sdp_enabled() or call.mask is not None:
        return False
    if not Capability(8, 0) <= capability <= FUSED_UP_TO:
        return False
    if not _fits_all(call, HALF) or not width == key.shape[-1] == value.shape[-1] <= 256:
        return False
    # Its causal mask begins at another corner then than PyTorch's.
    if call.is_causal and query.shape[2] != key.shape[2]:
        return False
    # Backward of wide heads needs more shared memory than these have.
    small = Capability(8, 6) <= capability <= Capability(8, 9) or capability.major == 12
    if small and call.differentiated and width > 192 and (call.dropout > 0 or width <= 224):
        return False
    return _heads_fit(call, grouped=True) and _dense(call, width_of_one=True)


def _fits_efficient(call: Attention, capability: Capability) -> bool:
    query, key, value = call.tensors
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or capability > FUSED_UP_TO:
        return False
    dtypes = (torch.float16, torch.float32, *(HALF if capability.major >= 8 else ()))
    widths = query.shape[-1], value.shape[-1]
    step = _alignment(query.dtype in HALF, capability)
    return (
        _fits_all(call, dtypes)
        and query.shape[-1] == key.shape[-1]
        and all(width > 0 and width % step == 0 for width in widths)
        and _heads_fit(call, grouped=False)
        and _dense(call, width_of_one=False)
    )


def _fits_math(_call: Attention, _capability: Capability) -> bool:
    return torch.backends.cuda.math_sdp_enabled()


def _alignment(half: bool, capability: Capability) -> int:
    """Return of how many elements a head's width must be a multiple in the efficient kernels."""
    tensor_cores = capability.major >= 8 or (capability.major >= 7 and half)
    step = 4 if capability.major >= 8 else 1
    return max(step, 8 if half else 4) if tensor_cores else step


def _fits_cudnn(call: Attention, capability: Capability) -> bool:
    query, key, value = call.tensors
    width, value_width = query.shape[-1], value.shape[-1]
    if not Capability(8, 0) <= capability <= FUSED_UP_TO or not _fits_all(call, HALF):
        return False
    if not torch.backends.cuda.cudnn_sdp_enabled() or _is_deterministic():
        return False
    if call.dropout * 16 != int(call.dropout * 16):  # its resolution of probabilities
        return False
    if (
        not _mask_fits_cudnn(call)
        or not _heads_fit(call, grouped=True)
        or not _dense(call, width_of_one=True)
    ):
        return False
    widest = 128
    if capability in (Capability(9, 0),) or capability.major == 10:
        widest = 192 if (width, value_width) == (192, 128) else 128
    if max(width, value_width) > widest or width % 8 or value_width % 8 or key.shape[2] == 1:
        return False
    return not (call.dropout and query.shape[2] == 1)


def _is_deterministic() -> bool:
    """Return whether kernels that are not deterministic are refused; cuDNN's attention is none."""
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled() and not only_warns


def _mask_fits_cudnn(call: Attention) -> bool:
    if call.mask is None:
        return True
    batch, heads, queries, _width = call.query.shape
    shape = call.mask.shape
    if call.mask.requires_grad or len(shape) not in (2, 4):
        return False
    wanted = (batch, heads, queries, call.key.shape[2])[-len(shape) :]
    return all(size in (1, whole) for size, whole in zip(shape, wanted, strict=True))


# ── what runs ───────────────────────────────────────────────────────────────────────────────────────


def _flash(call: Attention) -> Tensor:
    """Run flash attention, heads padded to a multiple of 8."""
    width = call.query.shape[-1]
    scale = 1 / sqrt(width) if call.scale is None else call.scale
    padded = [_padded(tensor, 8) for tensor in call.tensors]
    made = aten._scaled_dot_product_flash_attention(
        *padded, call.dropout, call.is_causal, False, scale=scale
    )[0]
    return made if made.shape[-1] == width else made[..., :width]


def _efficient(call: Attention) -> Tensor:
    """Run the efficient kernel: a mask is a bias of all heads' scores, its rows of a multiple of 16."""
    bias = _as_bias(call)
    if bias is not None:
        batch, heads, queries, _width = call.query.shape
        keys = call.key.shape[2]
        if bias.shape[-1] % 16:
            bias = _padded(bias, 16)[..., : bias.shape[-1]]
        bias = bias.expand(batch, heads, queries, keys)
    return aten._scaled_dot_product_efficient_attention(
        *call.tensors, bias, call.differentiated, call.dropout, call.is_causal, scale=call.scale
    )[0]


def _cudnn(call: Attention) -> Tensor:
    return aten._scaled_dot_product_cudnn_attention(
        *call.tensors,
        _as_bias(call),
        call.differentiated,
        call.dropout,
        call.is_causal,
        False,
        scale=call.scale,
    )[0]


def _math(call: Attention) -> Tensor:
    keywords = {"scale": call.scale, "enable_gqa": call.grouped}
    mask = _as_bias(call)
    return aten._scaled_dot_product_attention_math(
        *call.tensors, mask, call.dropout, call.is_causal, None, **keywords
    )[0]


def _padded(tensor: Tensor, step: int) -> Tensor:
    """Return the tensor with its last dimension padded to a multiple of `step`."""
    missing = -tensor.shape[-1] % step
    return aten.constant_pad_nd(tensor, [0, missing]) if missing else tensor


def _as_bias(call: Attention) -> Tensor | None:
    """Return the mask as what is added to scores."""
    if call.mask is None or call.mask.dtype != torch.bool:
        return call.mask
    minus = aten.scalar_tensor.default(-torch.inf, dtype=call.query.dtype, device=call.query.device)
    return torch.where(call.mask, 0.0, minus)


_MATH, _FLASH, _EFFICIENT, _CUDNN = range(4)
"""Values of `SDPBackend`."""
_DEFAULT_ORDER = [_FLASH, _EFFICIENT, _MATH, _CUDNN]
"""The order if `sdpa_kernel(…, set_priority=True)` has set none: then PyTorch looks at the GPU too."""
_KERNELS: dict[int, tuple[Callable[[Attention, Capability], bool], Callable[[Attention], Tensor]]] = {
    _MATH: (_fits_math, _math),
    _FLASH: (_fits_flash, _flash),
    _EFFICIENT: (_fits_efficient, _efficient),
    _CUDNN: (_fits_cudnn, _cudnn),
}
