"""Memory of a GPU's kernels in addition to inputs and outputs: formulas after PyTorch's kernels, not
measured.

    products               no workspace: cuBLAS keeps one for all, `constant_bytes`
    attention, backward    flash, cuDNN, efficient in half precision: the gradient of the queries in float32,
                           a number for each of their rows, and if several heads share keys, the gradients
                           of keys and values for each of them (flash_attn/flash_api.cpp, mha_bwd; cuDNN's
                           is not documented and taken as flash's). Efficient in float32: the product of
                           output and its gradient (cuda/attention_backward.cu)
    gradients of tables    the rows' numbers sorted, the position of each, and as much for the sort itself
                           (cuda/Embedding.cu, cuda/Indexing.cu)
    softmax, backward      the product of output and its gradient (cuda/SoftMax.cu, softmax_backward_cuda_out)
    sort, topk             keys and positions once more (cuda/Sort.cu)
    convolutions           cuDNN's choice, which is not documented. Usual: input, weight and output in the
                           other layout of channels. Most: all patches under the weight, unrolled.

All else is counted as nothing. A graph from `plan profile --device cuda` has measured ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch

from ...graphs.machines.gpus import Gpu
from ...torch_support.torch_operators import (
    ATTENTION_BACKWARD,
    EFFICIENT_BACKWARD,
    OLD_CONVOLUTION,
    SOFTMAX_BACKWARD,
)

INT64, FLOAT32 = 8, 4
UNSORTED = 3072
"""Up to so many rows the gradient of a table is made without a sort."""

aten: Any = torch.ops.aten


class Workspace(NamedTuple):
    """Workspace of a call, in bytes: as usual, and at most."""

    usual: int = 0
    most: int = 0


def constant_bytes(gpu: Gpu) -> int:
    """Return the bytes that cuBLAS keeps as long as the process computes."""
    return gpu.workspace


def workspace_of(target: Any, args: Any, keywords: Mapping[str, Any], result: Any) -> Workspace:
    """Return the workspace of one call. Tensors may be fake: only their layout is read."""
    operation = getattr(target, "overloadpacket", target)
    if operation is EFFICIENT_BACKWARD and args[1].itemsize == FLOAT32:
        return _same(args[0].nbytes)
    if operation in ATTENTION_BACKWARD:
        return _same(_attention(args[1], args[2]))
    if operation is SOFTMAX_BACKWARD:
        return _same(args[0].nbytes)
    if operation is aten.embedding_dense_backward:
        rows = args[1].numel()
        # Keys and positions, and as much for the sort: four numbers a row.
        return _same(4 * INT64 * rows if rows > UNSORTED else 0)
    if operation is aten.index_put and (args[3] if len(args) > 3 else keywords.get("accumulate", False)):
        rows = max((index.numel() for index in args[1] if index is not None), default=0)
        return _same(4 * INT64 * rows)
    if operation in (aten.sort, aten.topk, aten.argsort):
        return _same(args[0].nbytes + INT64 * args[0].numel())
    if operation in (aten.convolution, OLD_CONVOLUTION):
        transposed = args[6] if operation is aten.convolution else False
        return _convolution(args[0], args[1], result, transposed)
    if operation is aten.convolution_backward:
        return _convolution(args[1], args[2], args[0], args[7])
    return Workspace()


def _same(size: int) -> Workspace:
    return Workspace(size, size)


def _attention(query: Any, key: Any) -> int:
    """Return the bytes of attention's workspace in backward. Sums are padded to whole tiles.

    query, key: of shape (batch, heads, length, width).
    """
    batch, heads, length, width = query.shape
    # Gradients of keys and values, in their dtype, for each head of the queries.
    shared = 2 * key.itemsize * key.numel() // key.shape[1] * heads
    tile = 32 if width <= 128 else 64
    # float32; rows in tiles of 128, columns in tiles of the width, and one sum a row.
    sums = 4 * batch * heads * (-(-length // 128) * 128) * (-(-width // tile) * tile + 1)
    return sums + (shared if key.shape[1] != heads else 0)


def _convolution(x: Any, weight: Any, y: Any, transposed: bool) -> Workspace:
    """Return the workspace of a convolution.

    x, y: input and output, or the output's gradient.
    """
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    usual = 0 if last else x.nbytes + weight.nbytes + y.nbytes
    places = (x if transposed else y).shape
    # Places of the result times the elements under one filter.
    patches = places[0] * prod(places[2:]) * (weight.numel() // weight.shape[0]) * x.itemsize
    return Workspace(usual, max(usual, patches))
