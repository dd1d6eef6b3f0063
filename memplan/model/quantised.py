"""Frozen weights in 4 bits, for GPUs that are not here: the bytes and the operations of bitsandbytes' layers.

    codes     half a byte per weight
    scales    float32 per block of 64 weights; nested: a byte, and float32 per 256 of these bytes
    tables    16 numbers per layer; nested: 256 more and an offset

Forward and backward dequantise the weight where they use it. The operators have no kernels: such a model is
traced and estimated, not run.

Reference: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023, arXiv:2305.14314;
Linear4bit and MatMul4Bit of bitsandbytes 0.50.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

KINDS = ("nf4", "nf4-nested")
BLOCK, NESTED_BLOCK = 64, 256
"""Weights per scale, and scales per scale of scales."""


def _weight(codes: Tensor, scales: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    del scales
    return codes.new_empty(shape, dtype=dtype)


def _scales(codes: Tensor, scales: Tensor, table: Tensor, offset: Tensor) -> Tensor:
    del scales, table, offset
    return codes.new_empty(codes.shape, dtype=torch.float32)


for _name, _schema, _fake in (
    ("dequantise_weight", "(Tensor codes, Tensor scales, int[] shape, ScalarType dtype) -> Tensor", _weight),
    ("dequantise_scales", "(Tensor codes, Tensor scales, Tensor table, Tensor offset) -> Tensor", _scales),
):
    torch.library.define(f"memplan::{_name}", _schema)
    torch.library.register_fake(f"memplan::{_name}", _fake)
_OPERATORS: Any = torch.ops.memplan


class QuantisedLinear(nn.Linear):
    """A linear layer with a frozen weight in 4 bits, for peft a layer that adapters can be around.

    dtype: that it computes in; None: that of `like`, a tensor on its device.
    """

    def __init__(
        self,
        widths: tuple[int, int],
        bias: nn.Parameter | None,
        like: Tensor,
        kind: str,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)  # nn.Linear's would make a whole weight
        inputs, outputs = self.in_features, self.out_features = widths
        self.dtype = dtype or like.dtype
        elements = inputs * outputs
        blocks = -(-elements // BLOCK)

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        self.weight = nn.Parameter(empty(-(-elements // 2), 1, dtype=torch.uint8), requires_grad=False)
        self.bias = bias
        self.nested = kind == "nf4-nested"
        tensors: Mapping[str, Tensor] = {
            "scales": empty(blocks, dtype=torch.uint8 if self.nested else torch.float32),
            "table": empty(16),
        }
        if self.nested:
            nested = {"nested_scales": empty(-(-blocks // NESTED_BLOCK)), "nested_table": empty(256)}
            tensors = {**tensors, **nested, "offset": empty()}
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, input: Tensor) -> Tensor:  # the name that nn.Linear's has
        x = input
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return _Product.apply(x.to(self.dtype), bias, self).to(x.dtype)  # pyright: ignore

    def dequantised(self) -> Tensor:
        """Return the weight in the dtype that the layer computes in."""
        scales: Any = self.scales
        if self.nested:
            scales = _OPERATORS.dequantise_scales(scales, self.nested_scales, self.nested_table, self.offset)
        shape = [self.out_features, self.in_features]
        return _OPERATORS.dequantise_weight(self.weight, scales, shape, self.dtype)


def quantise(module: nn.Module, layers: Mapping[str, tuple[int, int]], kind: str, dtype: Any = None) -> None:
    """Replace linear layers of a module. layers: widths by name. dtype: as QuantisedLinear's."""
    for name, widths in layers.items():
        base: Any = module.get_submodule(name)
        path, _, last = name.rpartition(".")
        made = QuantisedLinear(widths, base.bias, base.weight, kind, dtype)
        setattr(module.get_submodule(path), last, made)


class _Product(torch.autograd.Function):
    """Product with a weight that backward dequantises once more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, layer: QuantisedLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.dequantised(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.matmul(gradients[0], ctx.layer.dequantised()), None, None
