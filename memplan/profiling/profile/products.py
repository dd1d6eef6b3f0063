"""Products of matrices on the CPU, whose cost follows from that of the same product of other sizes.

They take most of an iteration's time, so not to run them is most of what a derived plan saves. PyTorch's
kernels for them hand float matrices to BLAS where they lie: forms of the results and the lack of workspace
depend on how the matrices lie, not on their sizes. Times go with the number of multiplications.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

import torch

from ...program.program import Call, Program, Value, values_read

aten = torch.ops.aten
_PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
_BY_BLAS = {torch.float32, torch.float64}
"""Others may be brought into another order first, which takes memory."""


def product_key(program: Program, call: Call) -> Hashable:
    """Return what products of matrices with the same layout share, of any sizes; None for other calls."""
    if call.target not in _PRODUCTS:
        return None
    values = _values(program, call)
    if any(value.device.type != "cpu" or value.dtype not in _BY_BLAS for value in values):
        return None
    return call.target, tuple(map(_lie, values))


def multiplications(program: Program, call: Call) -> int:
    """Return how many numbers the product multiplies."""
    *_inputs, right, result = _values(program, call)
    # Elements of the result times the inner dimension.
    return prod(result.shape) * right.shape[-2]


def _values(program: Program, call: Call) -> list[Value]:
    """Return the matrices that are read, in order, and the result."""
    read = [program.values[value] for value in values_read(call)]
    return [*read, *(program.values[value] for value in call.outputs if value is not None)]


def _lie(value: Value) -> Hashable:
    """Return how a tensor lies in memory: which dimension is within which, and which are of one element or
    repeated; strides of those are arbitrary, and kernels look at them.
    """
    dimensions = range(len(value.shape))
    # The outermost dimension first.
    order = tuple(sorted(dimensions, key=lambda one: (-value.strides[one], one)))
    dense, expected = True, 1
    for dimension in reversed(order):
        # Dense: each stride is the product of the sizes within it.
        dense = dense and value.strides[dimension] == expected
        expected *= value.shape[dimension]
    special = tuple((value.shape[one] <= 1, value.strides[one] == 0) for one in dimensions)
    return value.dtype, value.device, order, dense, special
