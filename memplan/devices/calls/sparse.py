"""Products of a sparse matrix among the inputs, COO or CSR, with dense ones: operators of the matrix's parts.

A plan sees memory by blocks, and a sparse tensor has several: its indices and its values. So a sparse input
is its parts (model/sparse_inputs.py), and a product is one operator, which makes the sparse tensor of them,
without a copy, and calls PyTorch's kernel. Its backward is that of PyTorch: the transpose times the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

PRODUCTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch.sparse.mm": torch.sparse.mm,
    "torch.mm": torch.mm,
    "torch.matmul": torch.matmul,
}
"""Functions of a sparse and a dense matrix by name."""


def assembled(parts: Sequence[Tensor], size: Sequence[int], form: str) -> Tensor:
    """Return the sparse tensor of these parts, which share its memory.

    form: its layout, `sparse_csr`, or for COO whether it is coalesced.
    """
    if form == "sparse_csr":
        rows, columns, values = parts
        # A check of the indices would make the host wait for the device.
        return torch.sparse_csr_tensor(rows, columns, values, list(size), check_invariants=False)
    indices, values = parts
    return torch.sparse_coo_tensor(
        indices, values, list(size), check_invariants=False, is_coalesced=form == "coalesced"
    )


@torch.library.custom_op("memplan::sparse_product", mutates_args=())
def sparse_product(
    parts: Sequence[Tensor], size: Sequence[int], form: str, dense: Tensor, function: str
) -> Tensor:
    """Multiply a sparse matrix with a dense one. function: one of `PRODUCTS`."""
    return PRODUCTS[function](assembled(parts, size, form), dense)


@torch.library.custom_op("memplan::sparse_product_backward", mutates_args=())
def sparse_product_backward(
    parts: Sequence[Tensor], size: Sequence[int], form: str, gradient: Tensor
) -> Tensor:
    """Return the gradient of the dense matrix of `sparse_product`."""
    transpose = assembled(parts, size, form).t()
    if gradient.dim() == 1:
        return torch.mv(transpose, gradient)
    return torch.mm(transpose, gradient)


@sparse_product.register_fake
def _(_parts: Any, size: Sequence[int], _form: str, dense: Tensor, _function: str) -> Tensor:
    return dense.new_empty((size[0], *dense.shape[1:]))


@sparse_product_backward.register_fake
def _(_parts: Any, size: Sequence[int], _form: str, gradient: Tensor) -> Tensor:
    return gradient.new_empty((size[1], *gradient.shape[1:]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    parts, ctx.size, ctx.form = inputs[:3]
    ctx.save_for_backward(*parts)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    parts = list(ctx.saved_tensors)
    found = torch.ops.memplan.sparse_product_backward(parts, ctx.size, ctx.form, gradient)
    return [None] * len(parts), None, None, found, None


sparse_product.register_autograd(_backward, setup_context=_save)
