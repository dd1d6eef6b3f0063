"""Sparse matrices among the inputs: their parts, and what replaces them while an iteration is traced.

    COO    indices, values, whether they are coalesced
    CSR    offsets of the rows, columns, values

and the size. The parts are inputs of the plan, so another number of values is another shape of batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..devices.calls.sparse import PRODUCTS, assembled
from ..graphs.errors import InputError
from ..torch_support.hints import SPARSE
from ..torch_support.raw import is_a
from ..torch_support.torch_fakes import FakeTensor
from ..torch_support.torch_tensors import coo_parts
from ..torch_support.unsupported import TraceError


def is_sparse_matrix(thing: object) -> bool:
    """Tell whether a thing is a matrix in COO or CSR form."""
    if not is_a(thing, Tensor) or thing.layout not in (torch.sparse_coo, torch.sparse_csr):
        return False
    return thing.dim() == 2 and thing.dense_dim() == 0


def sparse_parts(matrix: Tensor) -> list[tuple[Any, Any]]:
    """Return the parts by their names. Raises InputError for a matrix that requires a gradient."""
    if matrix.requires_grad:
        raise InputError(f"a sparse input requires a gradient, which a plan does not compute: {SPARSE}")
    size = ("size", tuple(matrix.shape))
    if matrix.layout == torch.sparse_csr:
        # `.data`: these are views of the sparse tensor, which no fake tensor can be a view of.
        parts = [("rows", matrix.crow_indices().data), ("columns", matrix.col_indices().data)]
        return [*parts, ("values", matrix.values().data), size, ("form", "sparse_csr")]
    form = "coalesced" if matrix.is_coalesced() else "not coalesced"
    indices, values = coo_parts(matrix)
    return [("indices", indices), ("values", values), size, ("form", form)]


def with_sparse_parts(parts: Mapping[Any, Any]) -> Any:
    """Return the matrix of these parts; one that multiplies by operators of a plan if they are fake."""
    size, form = parts["size"], parts["form"]
    tensors = [part for part in parts.values() if isinstance(part, Tensor)]
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return TracedMatrix(tensors, size, form)
    return assembled(tensors, size, form)


class TracedMatrix:
    """A sparse matrix in a trace, which is only multiplied with dense ones.

    Functions of PyTorch find `__torch_function__`, as they do for tensors of another class.
    """

    layouts: ClassVar = {"sparse_csr": torch.sparse_csr}

    def __init__(self, parts: Sequence[Tensor], size: tuple[int, int], form: str) -> None:
        self._parts, self._form, self.shape = parts, form, torch.Size(size)
        self.dtype, self.device, self.ndim = parts[-1].dtype, parts[-1].device, 2
        self.layout = self.layouts.get(form, torch.sparse_coo)
        self.is_sparse, self.is_sparse_csr = form != "sparse_csr", form == "sparse_csr"
        self.requires_grad = False

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, arguments: Sequence[Any] = (), keywords: Any = None
    ) -> Any:
        names = {**{each: name for name, each in PRODUCTS.items()}, torch.spmm: "torch.mm"}
        if function in names and len(arguments) == 2 and not keywords and isinstance(arguments[0], cls):
            return arguments[0]._times(arguments[1], names[function])
        raise TraceError(f"{getattr(function, '__name__', function)} of a sparse input: {SPARSE}")

    def parts(self) -> list[tuple[Any, Any]]:
        """Return the parts by their names, as `sparse_parts` does."""
        names = ("rows", "columns", "values") if self.is_sparse_csr else ("indices", "values")
        size = ("size", tuple(self.shape))
        return [*zip(names, self._parts, strict=True), size, ("form", self._form)]

    def size(self, dimension: int | None = None) -> Any:
        return self.shape if dimension is None else self.shape[dimension]

    def dim(self) -> int:
        return 2

    def coalesce(self) -> TracedMatrix:
        if self._form == "not coalesced":
            raise TraceError("a sparse input is coalesced in the iteration: coalesce it before")
        return self

    def is_coalesced(self) -> bool:
        return self._form == "coalesced"

    def mm(self, dense: Tensor) -> Tensor:
        return self._times(dense, "torch.mm")

    def matmul(self, dense: Tensor) -> Tensor:
        return self._times(dense, "torch.matmul")

    __matmul__ = matmul

    def __getattr__(self, name: str) -> Any:
        raise TraceError(f"{name} of a sparse input: {SPARSE}")

    def _times(self, dense: Any, function: str) -> Tensor:
        if not isinstance(dense, Tensor) or dense.dim() > 2:
            raise TraceError(f"a sparse input times {type(dense).__name__}: {SPARSE}")
        return torch.ops.memplan.sparse_product(
            list(self._parts), list(self.shape), self._form, dense, function
        )
